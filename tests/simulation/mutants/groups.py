"""Planted bugs of consumer groups with server-side assignment, and their replacements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ponor_broker.groups.consumer import membership, reconciliation
from ponor_broker.groups.consumer.assignment import CurrentAssignment
from ponor_broker.groups.consumer.membership import ConsumerMembership
from ponor_broker.groups.consumer.reconciliation import reconcile
from ponor_broker.groups.consumer.records import ConsumerEntry, CurrentEntry, TargetEntry
from ponor_broker.groups.instructions import Timer, TimerKind
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.migration import GroupMigration
from ponor_broker.groups.outcome import TimerInstruction

from tests.simulation.mutants.mutant import Catch, Mutant, Suite, method, used_in

_has_failed = ConsumerMembership._has_failed
_restored = ConsumerMembership.restored
_records = GroupMigration._records


def reconcile_without_waiting(*args: Any, **kwargs: Any) -> CurrentAssignment:
    """`reconcile`."""
    return reconcile(*args, **kwargs | {"is_held": lambda *_: False})


def owns_none(*_: object) -> bool:
    """`_owns_any`."""
    return False


def sessions_never_end(self: ConsumerMembership, timer: Timer) -> bool:
    """`ConsumerMembership._has_failed`."""
    return timer.kind is not TimerKind.SESSION and _has_failed(self, timer)


def restored_without_sessions(self: ConsumerMembership) -> list[TimerInstruction]:
    """`ConsumerMembership.restored`."""
    return [each for each in _restored(self) if each.timer.kind is not TimerKind.SESSION]


def upgrade_without_assignments(
    self: GroupMigration, group_id: str, classic: Membership
) -> Iterator[ConsumerEntry]:
    """`GroupMigration._records`."""
    for entry in _records(self, group_id, classic):
        if isinstance(entry, CurrentEntry) and entry.value is not None:
            yield replace(entry, value=replace(entry.value, assigned={}))
        elif isinstance(entry, TargetEntry):
            yield replace(entry, value={})
        else:
            yield entry


GROUP_MUTANTS: Iterable[Mutant] = (
    Mutant(
        "group_assignment_before_release",
        "the coordinator gives a partition to its next member before the former one has released it",
        used_in("reconcile", reconcile_without_waiting, membership),
        (Catch(Suite.SWARM, "invariant (56|60) ", 46),),
    ),
    Mutant(
        "group_revocation_not_awaited",
        "the coordinator does not wait until a member reports that it revoked its partitions",
        used_in("_owns_any", owns_none, reconciliation),
        (Catch(Suite.SWARM, "invariant 56 ", 46),),
    ),
    Mutant(
        "group_sessions_never_end",
        "members that send no heartbeat stay in the group",
        (method(ConsumerMembership._has_failed, sessions_never_end),),
        (Catch(Suite.SWARM, "invariant 59 ", 47),),
    ),
    Mutant(
        "group_sessions_lost_on_load",
        "a coordinator that loads a group starts no sessions, so that members without heartbeats stay",
        (method(ConsumerMembership.restored, restored_without_sessions),),
        (Catch(Suite.SWARM, "invariant 59 ", 26),),
    ),
    Mutant(
        "group_upgrade_loses_assignments",
        "a classic group that becomes a consumer group does not know which partitions its members have",
        (method(GroupMigration._records, upgrade_without_assignments),),
        (Catch(Suite.SWARM, "invariant 56 ", 37),),
    ),
)
