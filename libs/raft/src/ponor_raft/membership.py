"""Replica identities, and the configuration: voters, learners and the size of a majority.

A configuration is in force as soon as its entry is appended, until a truncation removes the entry (Ongaro's
dissertation, section 4.1; etcd-io/etcd #12359 shows the cost of applying it later).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

DIRECTORY_ID_BYTES: Final = 16
VOTERS_MAX: Final = 9
LEARNERS_MAX: Final = 9


class ReplicaId(NamedTuple):
    """One log on one disk.

    A node that restarts with an empty disk is another replica, because its log and its votes are lost
    (KIP-853, KAFKA-14077).

    `directory_id` is the 16 bytes of the data directory's UUID.
    """

    node_id: int
    directory_id: bytes


@dataclass(frozen=True, slots=True)
class Membership:
    """Voters elect leaders and commit entries; learners only receive entries. Both tuples are sorted; a node
    id occurs at most once in the two tuples together.
    """

    voters: tuple[ReplicaId, ...]
    learners: tuple[ReplicaId, ...] = ()

    def __post_init__(self) -> None:
        members = self.voters + self.learners
        assert self.voters == tuple(sorted(self.voters))
        assert self.learners == tuple(sorted(self.learners))
        assert len({member.node_id for member in members}) == len(members), (
            "two members have the same node id"
        )
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
