"""Log entries and the hard state."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_raft.membership import Membership, ReplicaId


@dataclass(frozen=True, slots=True)
class Entry:
    """One log entry.

    `data` is opaque and never copied; `membership` is the configuration that the entry carries in `data`, if
    any.

    Indices start at 1 without gaps; terms never decrease.
    """

    index: int
    term: int
    data: bytes
    membership: Membership | None = None


@dataclass(frozen=True, slots=True)
class HardState:
    """Durable state: the current term, the vote in this term, and the minimum log position of candidates.

    `floor` is the (term, index) of a committed entry: candidates whose log ends before it get no vote, even
    if this replica's own log ends before it. It never decreases.
    """

    term: int = 0
    voted_for: ReplicaId | None = None
    floor: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """Position of a snapshot in the log, the configuration in force at this position, and digest and size of
    the body.

    `digest` is a 16-byte digest of the state; it is equal on every replica that applied the same entries.
    `size_bytes` is the body's length.
    """

    index: int
    term: int
    membership: Membership
    digest: bytes
    size_bytes: int
