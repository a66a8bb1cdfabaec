"""Limits and timeouts of the core; times are in ticks, whose length the owner defines (50 ms)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW_ENTRIES_MAX: Final = 1_000_000
WINDOW_BYTES_MAX: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RaftLimits:
    """Limits and timeouts.

    Attributes:
        election_ticks: silence of the leader after which a follower campaigns: drawn anew from
            [election_ticks, 2 * election_ticks). Also the leader's check-quorum interval, and how long a
            voter that hears a leader ignores candidates.
        heartbeat_ticks: between two heartbeats.
        suspicion_ticks: after `suspect_leader`, how long until the pre-vote (plus 0..suspicion_ticks drawn).
        append_bytes_max: data in one AppendRequest (a single larger entry goes alone).
        append_entries_max: entries in one AppendRequest.
        inflight_messages_max: AppendRequests under way to one follower.
        inflight_bytes_max: bytes under way to one follower.
        uncommitted_bytes_max: proposals not committed; above it `propose` refuses.
        uncommitted_entries_max: the same, in entries.
        reads_max: linearizable reads that wait.
        transfer_ticks: how long a transfer may take before proposals are let in again.
        snapshot_retry_ticks: without an answer to a chunk, after how long it is sent again.
        window_entries_max: entries in memory, committed ones that are not compacted included; above it
            `propose` refuses all but one entry at a time, and a follower whose committed entries alone reach
            it takes nothing but the opening entry of a term. `RaftNode.has_room` becomes False before.
        window_bytes_max: the same, in bytes of data.
        promotion_lag_entries_max: how far behind the leader's last entry a learner may be that is to become a
            voter.
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
            "a leader must be heard several times before it is given up"
        )
        assert self.append_bytes_max <= self.inflight_bytes_max, (
            "one full message must fit into the window of bytes"
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
