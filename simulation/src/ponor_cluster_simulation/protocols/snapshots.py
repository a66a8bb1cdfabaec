"""Snapshot leases: objects that readers of an older image may still need."""

from __future__ import annotations

from collections.abc import Iterable

from ponor_cluster_simulation.protocols.streams import NotAllowedError


def require_unpinned(destroyed_at: int, begun_at: Iterable[int]) -> None:
    """Check that no lease keeps an object that is claimed.

    Args:
        destroyed_at: when the object was destroyed.
        begun_at: starts of the live leases.

    Raises:
        NotAllowedError: a lease keeps it.
    """
    oldest = min(begun_at, default=None)
    if oldest is not None and destroyed_at >= oldest:
        raise NotAllowedError(
            f"a claim of an object destroyed at {destroyed_at}, under a lease since {oldest}"
        )
