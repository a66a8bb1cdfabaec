"""Limits and timeouts of the core. Times are in ticks; the owner determines the length of a tick (50 ms)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW_ENTRIES_MAX: Final = 1_000_000
WINDOW_BYTES_MAX: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RaftLimits:
    """Limits and timeouts.

    Attributes:
        election_ticks: silence of the leader after which a follower campaigns; each timeout is drawn from
            [election_ticks, 2 * election_ticks). It is also the leader's check-quorum interval, and the time
            for which a voter ignores candidates after a message from the leader.
        heartbeat_ticks: interval between two heartbeats.
        suspicion_ticks: time from `suspect_leader` to the pre-vote, plus a random delay of
            0..suspicion_ticks.
        append_bytes_max: bytes of data in one AppendRequest (a larger entry gets its own request).
        append_entries_max: number of entries in one AppendRequest.
        inflight_messages_max: number of unacknowledged AppendRequests to one follower.
        inflight_bytes_max: bytes of unacknowledged data to one follower.
        uncommitted_bytes_max: bytes of uncommitted proposals; above this limit `propose` raises
            ProposalsFullError.
        uncommitted_entries_max: the same limit, in entries.
        reads_max: number of linearizable reads that wait at the same time.
        transfer_ticks: how long a transfer may take. After that the leader accepts proposals again.
        snapshot_retry_ticks: time without an acknowledgement of a chunk until the leader sends the chunk
            again.
        window_entries_max: entries in memory, including committed ones that are not compacted yet. At the
            limit `propose` accepts only one uncommitted entry at a time. If the committed entries of a
            follower alone reach the limit, it accepts only the opening entry of a term. `RaftNode.has_room`
            becomes False earlier.
        window_bytes_max: the same limit, in bytes of data.
        promotion_lag_entries_max: maximum number of entries that a learner may be behind the leader when it
            is promoted to voter.
    """

    election_ticks: int = 20
    heartbeat_ticks: int = 2
    suspicion_ticks: int = 2
    append_bytes_max: int = 1024 * 1024
    append_entries_max: int = 4096
    inflight_messages_max: int = 16
    inflight_bytes_max: int = 8 * 1024 * 1024
    uncommitted_bytes_max: int = 32 * 1024 * 1024
    uncommitted_entries_max: int = 65_536
    reads_max: int = 1024
    transfer_ticks: int = 20
    snapshot_retry_ticks: int = 20
    window_entries_max: int = WINDOW_ENTRIES_MAX
    window_bytes_max: int = WINDOW_BYTES_MAX
    promotion_lag_entries_max: int = 4096

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_ticks < self.election_ticks, (
            "heartbeat_ticks must be at least 1 and below election_ticks"
        )
        assert self.append_bytes_max <= self.inflight_bytes_max, (
            "an append message of maximum size must fit into the window of bytes in flight"
        )
        assert (
            min(
                self.append_entries_max,
                self.inflight_messages_max,
                self.reads_max,
                self.uncommitted_entries_max,
            )
            > 0
        )
        assert min(self.suspicion_ticks, self.transfer_ticks, self.snapshot_retry_ticks) > 0
