"""Replica identities, and the configuration of voters and learners with its majorities.

The core decides when a configuration is in force: from the append of its entry until a truncation of that
entry (Ongaro's dissertation, section 4.1; etcd-io/etcd #12359 shows the cost of applying it later).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

DIRECTORY_ID_BYTES: Final = 16
VOTERS_MAX: Final = 9
LEARNERS_MAX: Final = 9


class ReplicaId(NamedTuple):
    """One log on one disk.

    An empty disk under the same node id is another replica, because it lost its votes (KIP-853, KAFKA-14077).

    `directory_id` is the 16 bytes of the data directory's UUID.
    """

    node_id: int
    directory_id: bytes


@dataclass(frozen=True, slots=True)
class Membership:
    """Voters decide, learners only receive. Both are sorted and disjoint; every node id occurs once."""

    voters: tuple[ReplicaId, ...]
    learners: tuple[ReplicaId, ...] = ()

    def __post_init__(self) -> None:
        members = self.voters + self.learners
        assert self.voters == tuple(sorted(self.voters))
        assert self.learners == tuple(sorted(self.learners))
        assert len({member.node_id for member in members}) == len(members), "one replica per node"
        assert len(self.voters) <= VOTERS_MAX
        assert len(self.learners) <= LEARNERS_MAX

    @property
    def members(self) -> tuple[ReplicaId, ...]:
        """All members, voters first."""
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        """Number of voters that form a majority."""
        return len(self.voters) // 2 + 1
