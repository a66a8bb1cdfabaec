"""Bounds and times of the core; times in ticks, whose length is the owner's business (50 ms)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftLimits:
    """See each field.

    Attributes:
        election_ticks: silence of the leader after which a follower campaigns: drawn anew from [election_ticks, 2 * election_ticks). Also the leader's
            check-quorum interval, and how long a voter that hears a leader ignores candidates.
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
