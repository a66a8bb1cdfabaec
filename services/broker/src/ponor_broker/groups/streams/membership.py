"""A streams group as a state machine without I/O: events in, records and timers out (KIP-1071).

Each event works on the newest state and changes it immediately; see `groups/outcome.py`. An answer is sent
when the records of the event, and all earlier ones of the group, are durable.

Source: Apache Kafka 4.3.1. As there, members are not static, report no task offsets, name all source topics,
and get no warm-up tasks; a topology does not change as long as the group exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.consumer.topics import ImageTopics, existing, hash_of
from ponor_broker.groups.group_counters import STREAMS_TYPE
from ponor_broker.groups.instructions import CancelTimer, SetTimer, Timer, TimerKind
from ponor_broker.groups.outcome import Draft, GroupOutcome, HeartbeatRefusedError, TimerInstruction
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.server_assigned_membership import MembersOfGroup, rebalance_timer, session_timer
from ponor_broker.groups.streams.admission import check_epoch, check_tasks, member_of
from ponor_broker.groups.streams.assignment import JOINING_EPOCH, MemberState
from ponor_broker.groups.streams.configured_topology import (
    ConfiguredTopology,
    Status,
    StatusCode,
    check_structure,
    configure,
)
from ponor_broker.groups.streams.endpoints import Endpoints
from ponor_broker.groups.streams.events import Outcome, StreamsAnswer, StreamsHeartbeat
from ponor_broker.groups.streams.member import StreamsMember
from ponor_broker.groups.streams.reconciliation import Target, reconcile
from ponor_broker.groups.streams.records import GroupEpoch, RecordKind, StreamsEntry, StreamsKey
from ponor_broker.groups.streams.settings import StreamsSettings
from ponor_broker.groups.streams.state import StreamsState
from ponor_broker.groups.streams.target_assigning import ASSIGNMENT_TIMER, Computation, TargetAssigning
from ponor_broker.groups.streams.task_assignor import Targets

_UNKNOWN_VERSION: Final = -1
_NOT_VALIDATED: Final = -1


@dataclass(slots=True)
class TopicCreation:
    """Why internal topics could not be created, by name, and the time of the next attempt."""

    failures: dict[str, str] = field(default_factory=dict)
    retry_at_ms: int = 0
    """On the monotonic clock."""


class StreamsMembership(MembersOfGroup[StreamsState]):
    """The members of one streams group."""

    def __init__(
        self,
        group_id: str,
        settings: StreamsSettings,
        topics: ImageTopics,
        admits: Callable[[int], bool],
    ) -> None:
        super().__init__(StreamsState(), admits)
        self._group_id = group_id
        self._settings = settings
        self._topics = topics
        self._assigning = TargetAssigning(group_id, self.contents, settings, admits)
        self._endpoints = Endpoints(self.contents)
        self._configured = ConfiguredTopology()
        self._topics_hash = 0
        self._version = _UNKNOWN_VERSION
        """Version of the topics for which the topology was configured."""
        self._shutdown_by: str | None = None
        """The member that requested the shutdown of the application. As in Kafka, a load forgets it; the
        member repeats its request.
        """
        self.creation: Final = TopicCreation()
        """The last attempt to create the internal topics."""

    # --- what other parts of the group read

    @property
    def state(self) -> GroupState:
        """State of the group."""
        contents = self.contents
        if self._is_dead:
            return GroupState.DEAD
        if not contents.members:
            return GroupState.EMPTY
        if not contents.is_validated:
            return GroupState.NOT_READY
        if contents.group.epoch > contents.assigned_epoch:
            return GroupState.ASSIGNING
        return GroupState.STABLE if contents.all_reached_target else GroupState.RECONCILING

    @property
    def group_type(self) -> str:
        """Kafka's name for this type of group."""
        return STREAMS_TYPE

    @property
    def protocol_type(self) -> str:
        """Protocol type of the members."""
        return STREAMS_TYPE

    @property
    def is_unused(self) -> bool:
        """Whether there are no members. An empty group remains until its offsets expire, or it is deleted."""
        return self.state is GroupState.EMPTY

    @property
    def size_bytes(self) -> int:
        """Memory of topology, members, targets and current assignments."""
        return self.contents.size_bytes

    def subscribed_topics(self) -> frozenset[str]:
        """Return the names of the topics that tasks read; without members, none is read."""
        topology = self.contents.topology
        if topology is None or not self.contents.members:
            return frozenset()
        return frozenset(topology.by_source)

    def configured(self) -> ConfiguredTopology:
        """Return the topology at the newest topics."""
        self._refresh()
        return self._configured

    def entries(self) -> Iterator[StreamsEntry]:
        """Yield one record per key, with its value when the iteration reaches it, if it still exists."""
        return self.contents.entries(self._group_id)

    def tombstones(self) -> Iterator[StreamsEntry]:
        """Yield the tombstones of all records."""
        return self.contents.tombstones(self._group_id)

    # --- heartbeats

    def heartbeat(self, request: StreamsHeartbeat, now_ms: int) -> Outcome:
        """Handle a heartbeat whose form is valid: a member joins, continues or leaves.

        `now_ms` is the time since 1970.
        """
        outcome = Outcome(Draft(self.contents))
        try:
            self._check_alive()
            is_leaving = request.member_epoch < JOINING_EPOCH
            handle = self._leave if is_leaving else self._continue
            outcome.answer = handle(request, outcome, now_ms)
        except HeartbeatRefusedError as refusal:
            self.take_back(outcome)
            outcome.answer = StreamsAnswer(refusal.code, str(refusal))
        return outcome

    def take_back(self, outcome: GroupOutcome[StreamsEntry, StreamsAnswer]) -> None:
        """Undo an event whose records the log refused, in the same turn of the event loop."""
        outcome.draft.take_back()
        outcome.timers.clear()
        self._version = _UNKNOWN_VERSION
        self._endpoints.clear()
        if isinstance(outcome, Outcome) and outcome.has_taken_turn:
            self._assigning.allow()

    def _continue(self, request: StreamsHeartbeat, outcome: Outcome, now_ms: int) -> StreamsAnswer:
        contents, draft, member_id = self.contents, outcome.draft, request.member_id
        is_first = contents.epoch is None
        is_joining, was_empty = request.member_epoch == JOINING_EPOCH, not contents.members
        if is_joining:
            self._check_size(member_id)
        else:
            member_of(self._group_id, contents, member_id)
        former = contents.current_of(member_id)
        check_epoch(former, request)
        before = contents.members.get(member_id)
        member = _updated(before or StreamsMember(member_id), request)
        if member != before:
            self._put(draft, RecordKind.MEMBER, member, member_id)
            self._endpoints.forget(member_id)
        self._put_topology(request, draft)
        self._check_room(draft, is_new=True)
        outcome.statuses += self._stale(member)
        self._refresh()
        if self._configured.is_ready and request.owned is not None:
            check_tasks(request.owned, self._configured.tasks)
        self._raise_epoch(draft, must=member != before)
        if was_empty:
            self._assigning.delay_first(outcome)
        self._assigning.assign_now(self._configured, outcome, now_ms)
        self._reconcile(request, outcome)
        outcome.timers.append(SetTimer(session_timer(member_id), self._settings.session_timeout_in_force_ms))
        if request.is_shutdown:
            self._shutdown_by = member_id
        has_news = is_joining or former.tasks != contents.current_of(member_id).tasks
        return self._answer(request, outcome, has_news=has_news, is_first=is_first)

    def _answer(
        self, request: StreamsHeartbeat, outcome: Outcome, *, has_news: bool, is_first: bool
    ) -> StreamsAnswer:
        # As in Kafka, the first answer of a group contains the endpoint, and the endpoint epoch is still 0.
        current = self.contents.current_of(request.member_id)
        if has_news and not is_first:
            self._endpoints.changed(request.member_id)
        statuses = outcome.statuses
        if self._configured.problem is not None:
            statuses.append(self._configured.problem)
        if self._shutdown_by is not None:
            detail = (
                f"Streams group member {self._shutdown_by} encountered a fatal error and requested a "
                "shutdown for the entire application."
            )
            statuses.append(Status(StatusCode.SHUTDOWN_APPLICATION, detail))
        is_old = self._endpoints.epoch != request.endpoint_epoch or (
            is_first and request.endpoint is not None
        )
        return StreamsAnswer(
            ErrorCode.NONE,
            member_id=request.member_id,
            member_epoch=current.epoch,
            statuses=tuple(statuses),
            tasks=current.tasks if has_news else None,
            endpoint_epoch=self._endpoints.epoch,
            endpoints=self._endpoints.rows(self._partitions_of) if is_old else None,
            missing=self._configured.missing,
        )

    def _put(
        self,
        draft: Draft[StreamsEntry],
        kind: RecordKind,
        value: StreamsMember | GroupEpoch,
        member_id: str = "",
    ) -> None:
        draft.put(StreamsEntry(StreamsKey(kind, self._group_id, member_id), value))

    def _check_size(self, member_id: str) -> None:
        most = self._settings.members_max
        if len(self.contents.members) >= most and member_id not in self.contents.members:
            raise HeartbeatRefusedError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The streams group has reached its maximum capacity of {most} members.",
            )

    # --- topology

    def _put_topology(self, request: StreamsHeartbeat, draft: Draft[StreamsEntry]) -> None:
        """Store the topology of the first member. An older one is accepted, and gets a status."""
        wanted, stored = request.topology, self.contents.topology
        if wanted is None:
            return
        if stored is None:
            check_structure(wanted)
            draft.put(StreamsEntry(StreamsKey(RecordKind.TOPOLOGY, self._group_id), wanted))
            self._version = _UNKNOWN_VERSION
        elif wanted.epoch >= stored.epoch and wanted != stored:
            raise HeartbeatRefusedError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")

    def _stale(self, member: StreamsMember) -> list[Status]:
        topology = self.contents.topology
        if topology is None or member.topology_epoch >= topology.epoch:
            return []
        detail = (
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
            f"{topology.epoch}."
        )
        return [Status(StatusCode.STALE_TOPOLOGY, detail)]

    def _partitions_of(self, name: str) -> int | None:
        topic = self._topics.find(name)
        return None if topic is None else topic.partitions

    def _refresh(self) -> None:
        """Configure the topology, if topics or the topology changed."""
        topology = self.contents.topology
        if self._version == self._topics.version or topology is None:
            return
        try:
            self._configured = configure(topology, self._partitions_of)
        except HeartbeatRefusedError as refusal:  # the topology is from another coordinator's log
            problem = Status(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, str(refusal))
            self._configured = ConfiguredTopology(problem=problem)
        self._topics_hash = hash_of(existing(self._topics, topology.topics))
        self._version = self._topics.version
        self._endpoints.clear()

    def _raise_epoch(self, draft: Draft[StreamsEntry], *, must: bool) -> None:
        """Raise the group epoch if the event `must`, or if what the assignment depends on changed."""
        group, topology = self.contents.group, self.contents.topology
        is_valid = topology is not None and self._configured.is_ready
        validated = topology.epoch if topology is not None and is_valid else _NOT_VALIDATED
        configs = self._settings.configs
        wanted = GroupEpoch(group.epoch, self._topics_hash, validated, configs)
        # As in Kafka, records of a version without configs are no reason for an assignment.
        if must or wanted != (group if group.configs else replace(group, configs=configs)):
            self._put(draft, RecordKind.EPOCH, replace(wanted, epoch=group.epoch + 1))

    # --- reconciliation

    def _reconcile(self, request: StreamsHeartbeat, outcome: Outcome) -> None:
        contents, member_id = self.contents, request.member_id
        current = contents.current_of(member_id)
        after = reconcile(
            current,
            Target(contents.assigned_epoch, contents.target_of(member_id)),
            owned=request.owned,
            may_execute=lambda task: (
                contents.executor(task) in {None, member_id} and not contents.is_in_process(task, member_id)
            ),
            may_restore=lambda task: not contents.is_in_process(task, member_id),
        )
        if after == current and member_id in contents.currents:
            return
        outcome.draft.put(StreamsEntry(StreamsKey(RecordKind.CURRENT, self._group_id, member_id), after))
        if after.state is MemberState.UNREVOKED_TASKS:
            timeout_ms = max(0, contents.members[member_id].rebalance_timeout_ms)
            outcome.timers.append(SetTimer(rebalance_timer(member_id), timeout_ms))
        else:
            outcome.timers.append(CancelTimer(rebalance_timer(member_id)))

    # --- leaving

    def _leave(self, request: StreamsHeartbeat, outcome: Outcome, now_ms: int) -> StreamsAnswer:
        member_of(self._group_id, self.contents, request.member_id)
        if request.is_shutdown:
            self._shutdown_by = request.member_id
        self._remove(request.member_id, outcome, now_ms)
        return StreamsAnswer(ErrorCode.NONE, member_id=request.member_id, member_epoch=request.member_epoch)

    def _remove(self, member_id: str, outcome: Outcome, now_ms: int) -> None:
        for entry in self.contents.removal_of(self._group_id, member_id):
            outcome.draft.put(entry)
        outcome.timers += [CancelTimer(session_timer(member_id)), CancelTimer(rebalance_timer(member_id))]
        self._endpoints.forget(member_id)
        if not self.contents.members:
            self._shutdown_by = None
        self._refresh()
        self._raise_epoch(outcome.draft, must=True)
        self._assigning.assign_now(self._configured, outcome, now_ms)

    def timer_fired(self, timer: Timer, now_ms: int) -> Outcome:
        """Handle a timer that was neither moved nor cancelled."""
        outcome = Outcome(Draft(self.contents))
        if timer.kind is TimerKind.ASSIGNMENT:
            self._assigning.allow()
            self._refresh()
            self._assigning.assign_now(self._configured, outcome, now_ms)
        elif timer.member_id in self.contents.members and self._has_failed(timer):
            self._remove(timer.member_id, outcome, now_ms)
        return outcome

    def _has_failed(self, timer: Timer) -> bool:
        """Whether a member did not send what it had to send before the timer fired."""
        if timer.kind is TimerKind.SESSION:
            return True
        return self.contents.current_of(timer.member_id).state is MemberState.UNREVOKED_TASKS

    # --- target assignment

    @property
    def needs_target(self) -> bool:
        """Whether a computation is due."""
        return self._assigning.is_due and not self._is_dead

    def begin_computation(self) -> Computation:
        """Start to compute a target. The caller runs the steps and installs the result, or calls
        `retry_assignment`.
        """
        assert self.needs_target
        return self._assigning.begin(self.configured())

    def retry_assignment(self, delay_ms: int) -> list[TimerInstruction]:
        """Return the timer for another attempt, because a computation or its installation failed."""
        return self._assigning.retry(delay_ms)

    def installation(self, computation: Computation, result: Targets, now_ms: int) -> Iterator[Outcome]:
        """Yield the parts of a target; see `TargetAssigning.installation`."""
        return self._assigning.installation(computation, result, now_ms)

    # --- load

    def restored(self) -> list[TimerInstruction]:
        """Return the timers after a load: every member has its full session, and its full time to revoke."""
        self.contents.drop_orphans()
        timers: list[TimerInstruction] = []
        for member_id, member in self.contents.members.items():
            timers.append(SetTimer(session_timer(member_id), self._settings.session_timeout_in_force_ms))
            if self.contents.current_of(member_id).state is MemberState.UNREVOKED_TASKS:
                timers.append(SetTimer(rebalance_timer(member_id), max(0, member.rebalance_timeout_ms)))
        return timers

    def unloaded(self) -> list[TimerInstruction]:
        """Return the timers to cancel, because another broker coordinates the group now."""
        self._is_dead = True
        timers: list[TimerInstruction] = [CancelTimer(ASSIGNMENT_TIMER)]
        for member_id in self.contents.members:
            timers += [CancelTimer(session_timer(member_id)), CancelTimer(rebalance_timer(member_id))]
        return timers


def _updated(member: StreamsMember, request: StreamsHeartbeat) -> StreamsMember:
    """Return the member with the fields that the request contains."""
    timeout_ms, topology = request.rebalance_timeout_ms, request.topology
    return replace(
        member,
        client_id=request.client_id,
        client_host=request.client_host,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms is None else timeout_ms,
        topology_epoch=member.topology_epoch if topology is None else topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        endpoint=member.endpoint if request.endpoint is None else request.endpoint,
        tags=member.tags if request.tags is None else request.tags,
    )
