"""Planted bugs of streams groups, and their replacements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ponor_broker.groups.instructions import Timer, TimerKind
from ponor_broker.groups.streams import membership, reconciliation
from ponor_broker.groups.streams.assignment import CurrentAssignment
from ponor_broker.groups.streams.membership import StreamsMembership
from ponor_broker.groups.streams.reconciliation import reconcile

from tests.simulation.mutants.mutant import Catch, Mutant, Suite, method, used_in

_has_failed = StreamsMembership._has_failed


def reconcile_without_waiting(*args: Any, **kwargs: Any) -> CurrentAssignment:
    """`reconcile`."""
    return reconcile(*args, **kwargs | {"may_execute": lambda _: True})


def has_none(*_: object) -> bool:
    """`_has_any`."""
    return False


def sessions_never_end(self: StreamsMembership, timer: Timer) -> bool:
    """`StreamsMembership._has_failed`."""
    return timer.kind is not TimerKind.SESSION and _has_failed(self, timer)


STREAMS_MUTANTS: Iterable[Mutant] = (
    Mutant(
        "streams_assignment_before_release",
        "the coordinator gives a task to its next member before the former one has released it",
        used_in("reconcile", reconcile_without_waiting, membership),
        (Catch(Suite.SWARM, "invariant 66 ", 51),),
    ),
    Mutant(
        "streams_revocation_not_awaited",
        "the coordinator does not wait until a member reports that it revoked its tasks",
        used_in("_has_any", has_none, reconciliation),
        (Catch(Suite.SWARM, "invariant 66 ", 51),),
    ),
    Mutant(
        "streams_sessions_never_end",
        "members that send no heartbeat stay in the group",
        (method(StreamsMembership._has_failed, sessions_never_end),),
        (Catch(Suite.SWARM, "invariant 67 ", 23),),
    ),
)
