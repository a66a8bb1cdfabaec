"""Who takes part: replicas, and the configuration of voters and learners.

What lives here: identities and majorities. When a configuration takes effect is the core's business: as soon as its entry is appended, and no longer once
that entry is truncated (Ongaro's dissertation, section 4.1; etcd-io/etcd #12359 shows what applying it later costs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

DIRECTORY_ID_BYTES: Final = 16
VOTERS_MAX: Final = 9
LEARNERS_MAX: Final = 9


class ReplicaId(NamedTuple):
    """One log on one disk. A blank disk under the same node id is another replica (KIP-853, KAFKA-14077): it has forgotten its votes.

    `directory_id` is the 16 bytes of the data directory's UUID.
    """

    node_id: int
    directory_id: bytes


@dataclass(frozen=True, slots=True)
class Membership:
    """Voters decide; learners only receive. Both sorted; nobody is in both; no node id appears twice."""

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
        """Everybody, voters first."""
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1
