"""What is the same in all types of group whose assignment the coordinator computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.instructions import Timer, TimerKind
from ponor_broker.groups.outcome import Draft, HeartbeatRefusedError


class _State(Protocol):
    @property
    def members(self) -> Mapping[str, Any]: ...


StateT = TypeVar("StateT", bound=_State)


def session_timer(member_id: str) -> Timer:
    """Return the timer that every heartbeat of a member restarts."""
    return Timer(TimerKind.SESSION, member_id)


def rebalance_timer(member_id: str) -> Timer:
    """Return the timer of a member that must revoke, join or sync."""
    return Timer(TimerKind.REBALANCE, member_id)


class MembersOfGroup(Generic[StateT]):
    """The members, and the deletion of their group."""

    def __init__(self, contents: StateT, admits: Callable[[int], bool]) -> None:
        """`admits` returns whether the group's memory may grow by a number of bytes."""
        self.contents: Final[StateT] = contents
        """The state, for reading only."""
        self._admits = admits
        self._is_dead = False

    def __len__(self) -> int:
        return len(self.contents.members)

    @property
    def is_of_consumers(self) -> bool:
        """Whether subscriptions are known: always."""
        return True

    def delete(self) -> ErrorCode:
        """Mark the group as dead; only possible without members."""
        if self._is_dead:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.contents.members:
            return ErrorCode.NON_EMPTY_GROUP
        self._is_dead = True
        return ErrorCode.NONE

    def revive(self) -> None:
        """Undo `delete`, because the tombstones were not written."""
        self._is_dead = False

    def _check_alive(self) -> None:
        if self._is_dead:
            raise HeartbeatRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group is being deleted.")

    def _check_room(self, draft: Draft[Any], *, is_new: bool) -> None:
        """Refuse a member or a subscription for which there is no memory.

        A new member's client repeats its request. The client of an existing one tells the application, and
        the member keeps its subscription until it leaves.
        """
        if not self._admits(draft.growth_bytes):
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_new else ErrorCode.GROUP_MAX_SIZE_REACHED
            what = "The member" if is_new else "The subscription"
            raise HeartbeatRefusedError(
                code, f"{what} needs more memory than groups_memory_bytes_max leaves on this broker."
            )
