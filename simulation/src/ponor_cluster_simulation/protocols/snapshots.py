"""Leases of snapshots: what a reader of an older image may still ask for, and nobody may delete meanwhile.

What lives here: the rule at the controller, in cluster time.
"""

from __future__ import annotations

from collections.abc import Iterable

from ponor_cluster_simulation.protocols.streams import NotAllowedError


def require_unpinned(destroyed_at: int, begun_at: Iterable[int]) -> None:
    """What was in use when a lease began may be claimed when the lease is over.

    Args:
        destroyed_at: when the object went out of use.
        begun_at: when each lease that lives began.

    Raises:
        NotAllowedError: a lease keeps it.
    """
    oldest = min(begun_at, default=None)
    if oldest is not None and destroyed_at >= oldest:
        raise NotAllowedError(
            f"a claim of what was destroyed at {destroyed_at}, under a lease since {oldest}"
        )
