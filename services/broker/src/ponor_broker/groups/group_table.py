"""The groups of one shard by id, and the budget of all groups of a broker.

Counts are updated by difference, so the cost of a request does not depend on the number of groups.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Counter

from ponor_broker.groups.group import NO_HOLDING, Group, Holding
from ponor_broker.groups.group_counters import CLASSIC_TYPE, CONSUMER_TYPE, SHARE_TYPE, STREAMS_TYPE
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.settings import GroupSettings

GROUP_BYTES: Final = 4_000
"""Memory of a group without its id, members and offsets: measured, rounded up."""
ROOM_AGAIN: Final = 0.9
"""After a logged refusal, the next is logged only once use has fallen below this fraction of the bounds."""

WALKED_PER_TURN_MAX: Final = 1_000
"""Groups and offsets that a walk visits per event-loop turn: a few milliseconds."""

STATES: Final = {
    CLASSIC_TYPE: (
        GroupState.EMPTY,
        GroupState.PREPARING_REBALANCE,
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
        GroupState.DEAD,
    ),
    CONSUMER_TYPE: (
        GroupState.EMPTY,
        GroupState.ASSIGNING,
        GroupState.RECONCILING,
        GroupState.STABLE,
        GroupState.DEAD,
    ),
    SHARE_TYPE: (GroupState.EMPTY, GroupState.STABLE, GroupState.DEAD),
    STREAMS_TYPE: (
        GroupState.EMPTY,
        GroupState.NOT_READY,
        GroupState.ASSIGNING,
        GroupState.RECONCILING,
        GroupState.STABLE,
        GroupState.DEAD,
    ),
}
"""The states of a group, by type."""

_LOG = logging.getLogger(__name__)


class GroupBudget:
    """Resources of all groups of a broker, against `groups_max` and `groups_memory_bytes_max`."""

    def __init__(self, settings: GroupSettings, refused: Counter) -> None:
        self._settings = settings
        self._refused = refused
        self._is_full = False
        self.by_kind = {(kind, state): 0 for kind, states in STATES.items() for state in states}
        """Number of groups, by type and state."""
        self.members = 0
        self.offsets = 0
        self.size_bytes = 0

    @property
    def groups(self) -> int:
        """Groups in any state."""
        return sum(self.by_kind.values())

    def admits_group(self, group_id: str) -> bool:
        """Return whether the bounds allow one more group. Count every refusal; log one, and the
        next only once use has fallen below `ROOM_AGAIN`.
        """
        if self.groups >= self._settings.groups_max:
            self._refuse(f"{self.groups} groups exist, the maximum of groups_max")
            return False
        return self.admits(GROUP_BYTES + len(group_id))

    def admits(self, more_bytes: int) -> bool:
        """Return whether groups may grow by this many bytes. A change without growth is always allowed."""
        if more_bytes <= 0 or self.size_bytes + more_bytes <= self._settings.groups_memory_bytes_max:
            return True
        self._refuse(f"groups take {self.size_bytes} bytes, and more would exceed groups_memory_bytes_max")
        return False

    def _refuse(self, why: str) -> None:
        self._refused.add()
        if not self._is_full:
            self._is_full = True
            _LOG.warning("refusing new groups, members or offsets: %s; delete groups or raise the bound", why)

    def _note_room(self) -> None:
        settings = self._settings
        if (
            self._is_full
            and self.groups < ROOM_AGAIN * settings.groups_max
            and self.size_bytes < ROOM_AGAIN * settings.groups_memory_bytes_max
        ):
            self._is_full = False

    def recount(self, group: Group) -> None:
        """Count the current resources of a group instead of its previous ones."""
        self._replace(group, group.holding)

    def forget(self, group: Group) -> None:
        """Subtract the resources of a removed group."""
        self._replace(group, NO_HOLDING)

    def _replace(self, group: Group, new: Holding) -> None:
        old, group.counted = group.counted, new
        if old == new:
            return
        for holding, sign in ((old, -1), (new, 1)):
            if holding.kind is not None:
                self.by_kind[holding.kind] += sign
                self.size_bytes += sign * (GROUP_BYTES + len(group.group_id))
            self.members += sign * holding.members
            self.offsets += sign * holding.offsets
            self.size_bytes += sign * holding.size_bytes
        self._note_room()


class GroupTable:
    """The groups of one shard."""

    def __init__(self, settings: GroupSettings, budget: GroupBudget) -> None:
        self._settings = settings
        self._groups: dict[str, Group] = {}
        self.budget = budget

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    async def walk(self, clock: Clock) -> AsyncIterator[Group]:
        """Yield every group that still exists when the walk reaches it, in bounded event-loop turns."""
        walked = 0
        for group in self:
            if group not in self:
                continue
            walked += 1 + group.offsets.rows
            yield group
            if walked >= WALKED_PER_TURN_MAX:
                walked = 0
                await clock.sleep(0)

    def __contains__(self, group: Group) -> bool:
        return self._groups.get(group.group_id) is group

    def get(self, group_id: str) -> Group | None:
        """Return a group by id."""
        return self._groups.get(group_id)

    def create(self, group_id: str) -> Group | None:
        """Create a group; return None at the broker's bound."""
        return self.add(group_id) if self.budget.admits_group(group_id) else None

    def add(self, group_id: str) -> Group:
        """Create a group regardless of the bound, because the log contains it already."""
        assert group_id not in self._groups
        group = self._groups[group_id] = Group(group_id, Membership(self._settings))
        self.budget.recount(group)
        return group

    def remove(self, group: Group) -> None:
        """Remove a group."""
        assert group in self
        del self._groups[group.group_id]
        self.budget.forget(group)
