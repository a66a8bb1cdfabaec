"""What the log consists of, and what must be durable beside it."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_raft.membership import Membership, ReplicaId


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log. `data` is opaque and never copied; `membership` is the configuration that this entry carries inside `data`, if any.

    Indices begin at 1 and have no holes; the terms of a log never fall.
    """

    index: int
    term: int
    data: bytes
    membership: Membership | None = None


@dataclass(frozen=True, slots=True)
class HardState:
    """What a replica must not forget: its term, whom it voted for in it, and what a candidate must have.

    `floor` is the (term, index) of a committed entry: no vote goes to a log that ends before it, also when the own log ends before it. It never falls.
    """

    term: int = 0
    voted_for: ReplicaId | None = None
    floor: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """Where a snapshot stands in the log, what configuration was in force there, and how to know its body again.

    `digest` is over the state (16 bytes): equal on every replica that applied the same entries. `size_bytes` is the body's length.
    """

    index: int
    term: int
    membership: Membership
    digest: bytes
    size_bytes: int
