"""Which heartbeats of streams groups are accepted. The messages are Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.outcome import HeartbeatRefusedError
from ponor_broker.groups.streams.assignment import JOINING_EPOCH, CurrentAssignment, Tasks
from ponor_broker.groups.streams.events import StreamsHeartbeat
from ponor_broker.groups.streams.member import StreamsMember
from ponor_broker.groups.streams.state import StreamsState

_REJOIN: Final = "The member must abandon all its partitions and rejoin."


def member_of(group_id: str, state: StreamsState, member_id: str) -> StreamsMember:
    """Return a member.

    Raises:
        HeartbeatRefusedError: there is no such member.
    """
    member = state.members.get(member_id)
    if member is None:
        raise HeartbeatRefusedError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
        )
    return member


def check_epoch(current: CurrentAssignment, request: StreamsHeartbeat) -> None:
    """Check the member epoch of a heartbeat.

    Raises:
        HeartbeatRefusedError: the member is fenced.
    """
    epoch = request.member_epoch
    if epoch in {JOINING_EPOCH, current.epoch}:
        return
    if epoch > current.epoch:
        raise HeartbeatRefusedError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The streams group member has a greater member epoch ({epoch}) than the one known by the group "
            f"coordinator ({current.epoch}). {_REJOIN}",
        )
    # The answer with the newer epoch may have been lost.
    if epoch != current.previous_epoch or not _is_within(request.owned, current.tasks):
        raise HeartbeatRefusedError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The streams group member has a smaller member epoch ({epoch}) than the one known by the group "
            f"coordinator ({current.epoch}). {_REJOIN}",
        )


def _is_within(owned: Tasks | None, assigned: Tasks) -> bool:
    return owned is not None and owned.active <= assigned.active and owned.standby <= assigned.standby


def check_tasks(owned: Tasks, counts: Mapping[str, int]) -> None:
    """Check that the tasks that a member reports exist.

    Args:
        owned: the tasks.
        counts: number of tasks by subtopology id.

    Raises:
        HeartbeatRefusedError: one does not exist.
    """
    wrong = [
        task
        for task in owned.active | owned.standby
        if not 0 <= task.partition < counts.get(task.subtopology_id, 0)
    ]
    if wrong:
        subtopology_id, partition = min(wrong)
        count = counts.get(subtopology_id)
        if count is None:
            raise HeartbeatRefusedError(
                ErrorCode.INVALID_REQUEST, f"Subtopology {subtopology_id} does not exist in the topology."
            )
        raise HeartbeatRefusedError(
            ErrorCode.INVALID_REQUEST,
            f"Task {partition} for subtopology {subtopology_id} is invalid. Number of tasks for this "
            f"subtopology: {count}",
        )
