"""Parameters that a seed draws for its group: kinds, frequency and size of faults.

Each seed omits some kinds, because some faults hide the effects of others (swarm testing; Groce et al., ISSTA
2012).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ponor_raft.limits import RaftLimits

from ponor_cluster_simulation.raft_cluster.replica import SnapshotHabits

FAULT_KINDS = (
    "partition",
    "crash",
    "pause",
    "slow disk",
    "change",
    "transfer",
    "blackout",
    "seclusion",
    "full disk",
)


@dataclass(frozen=True, slots=True)
class Swarm:
    """The parameters of a seed; probabilities and times in ms.

    Attributes:
        faults: kinds that occur, one every `fault_every_ms` on average.
        drift: how much the tick rates of replicas differ. With drift the vote lease and check-quorum may
            fail; safety must not depend on them.
        leader_crash: how often a leader loses power soon after its election, with a log that few others have.
    """

    voters: int
    faults: tuple[str, ...]
    fault_every_ms: int
    loss: float
    duplication: float
    stray: float
    drift: float
    leader_crash: float
    clients: int
    limits: RaftLimits
    snapshots: SnapshotHabits

    @classmethod
    def draw(cls, chance: Random) -> Swarm:
        """Draw the parameters of a seed."""
        faults = tuple(kind for kind in FAULT_KINDS if chance.random() < 0.6)
        snapshots = SnapshotHabits(
            every_entries=chance.choice((5, 25, 100_000)),
            trailing_entries=chance.choice((0, 3, 20)),
            chunk_bytes=chance.choice((40, 400)),
        )
        limits = RaftLimits(
            election_ticks=chance.choice((5, 10, 20)),
            heartbeat_ticks=chance.choice((1, 2)),
            suspicion_ticks=chance.choice((1, 2)),
            append_bytes_max=chance.choice((20, 200, 1 << 20)),
            append_entries_max=chance.choice((1, 3, 64)),
            inflight_messages_max=chance.choice((1, 4, 16)),
            uncommitted_entries_max=chance.choice((4, 64)),
            reads_max=chance.choice((2, 64)),
            transfer_ticks=chance.choice((5, 20)),
            snapshot_retry_ticks=chance.choice((4, 20)),
            window_entries_max=chance.choice((4, 80, 1_000_000)),
            promotion_lag_entries_max=chance.choice((2, 4096)),
        )
        return cls(
            voters=chance.choice((1, 2, 3, 3, 3, 4, 5)),
            fault_every_ms=chance.choice((150, 500, 1_500)),
            loss=chance.choice((0.0, 0.0, 0.02, 0.15)),
            duplication=chance.choice((0.0, 0.05, 0.2)),
            stray=chance.choice((0.0, 0.02, 0.1)),
            drift=chance.choice((0.0, 0.3, 1.2)),
            leader_crash=chance.choice((0.0, 0.0, 0.3)),
            clients=chance.choice((1, 3, 5)),
            limits=limits,
            snapshots=snapshots,
            # Drawn last, so that the other parameters of older seeds do not change.
            faults=(*faults, *(("older copy",) if chance.random() < 0.6 else ())),
        )
