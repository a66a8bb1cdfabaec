"""A leader's replication state and in-flight window for one member. `replication` decides what to send.

PROBE      one message at a time, to find where the logs match
REPLICATE  pipelined messages
SNAPSHOT   chunks of a snapshot, one at a time, because the next entries are no longer in memory
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from ponor_raft.limits import RaftLimits


class ProgressState(Enum):
    """Replication state of a follower, described in the module docstring."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class FollowerProgress:
    """Replication state of one member. Attributes to read:

    match_index: up to this index the log is durable at the follower and equal to the leader's; 0 after a new
    stream. acknowledged_index: the highest match_index before the newest stream began. next_index: the next
    index to send; always above match_index (etcd-io/raft PR #149). state: PROBE, REPLICATE or SNAPSHOT.
    heard_ticks_ago: ticks since the last response in this term. sent_commit: newest commit index that was
    sent (the message may be lost). echoed_round: newest heartbeat round that the member answered.
    snapshot_index, snapshot_offset: in SNAPSHOT, index of the snapshot (0: the newest one) and offset of the
    next chunk.
    """

    __slots__ = (
        "_in_flight",
        "acknowledged_index",
        "echoed_round",
        "heard_ticks_ago",
        "in_flight_bytes",
        "match_index",
        "next_index",
        "probe_round",
        "probe_under_way",
        "sent_commit",
        "snapshot_index",
        "snapshot_offset",
        "snapshot_offset_behind",
        "snapshot_under_way",
        "snapshot_waited_ticks",
        "state",
    )

    def __init__(self, next_index: int, acknowledged_index: int = 0) -> None:
        self.match_index = 0
        self.acknowledged_index = acknowledged_index
        self.next_index = next_index
        self.state = ProgressState.PROBE
        self.heard_ticks_ago = 0
        self.sent_commit = 0
        self.echoed_round = 0
        self.probe_under_way = False
        self.probe_round = 0  # heartbeat round in which the last message was sent
        self.in_flight_bytes = 0
        self.snapshot_index = 0
        self.snapshot_offset = 0
        self.snapshot_offset_behind: int | None = None
        self.snapshot_under_way = False
        self.snapshot_waited_ticks = 0
        self._in_flight: deque[tuple[int, int]] = deque()  # last index and bytes of each message

    def is_window_full(self, limits: RaftLimits) -> bool:
        """Whether the leader must wait for acknowledgements before it sends more entries."""
        return (
            len(self._in_flight) >= limits.inflight_messages_max
            or self.in_flight_bytes >= limits.inflight_bytes_max
        )

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Note a sent message with entries up to `last_index`."""
        assert last_index >= self.next_index
        if self.state is ProgressState.REPLICATE:
            self.next_index = last_index + 1
            self._in_flight.append((last_index, size_bytes))
            self.in_flight_bytes += size_bytes
        else:
            self.probe_under_way = True

    def sent_nothing(self) -> None:
        """Note a sent message without entries."""
        self.probe_under_way = self.state is ProgressState.PROBE

    def acknowledged(self, match_index: int) -> bool:
        """Handle an acknowledgement, perhaps repeated or reordered; return whether match_index rises."""
        while self._in_flight and self._in_flight[0][0] <= match_index:
            self.in_flight_bytes -= self._in_flight.popleft()[1]
        if match_index <= self.match_index:
            return False
        self.match_index = match_index
        self.next_index = max(self.next_index, match_index + 1)
        return True

    def refused(self, rejected_index: int, meeting_index: int) -> bool:
        """Handle a rejection: the follower lacks the leader's entry at `rejected_index`. The logs may match
        at `meeting_index`.

        Return False if the rejection is stale.
        """
        if self.state is ProgressState.SNAPSHOT or rejected_index <= self.match_index:
            # The follower rejects an entry that it acknowledged: the message is stale, or the follower's disk
            # lost data. Retries would never end.
            return False
        newest = self.next_index - 1
        if rejected_index > newest or (self.state is ProgressState.PROBE and rejected_index != newest):
            return False
        self.probe(min(rejected_index, meeting_index + 1))
        return True

    def probe(self, next_index: int = 0) -> None:
        """Probe for the last index at which the logs match, from at least match_index + 1 on."""
        self.state = ProgressState.PROBE
        self.next_index = max(next_index, self.match_index + 1)
        self.probe_under_way = False
        self.sent_commit = min(self.sent_commit, self.match_index)
        self._empty_window()

    def replicate(self) -> None:
        """Start to replicate: the logs match at match_index."""
        self.state = ProgressState.REPLICATE
        self.next_index = self.match_index + 1
        self.probe_under_way = False
        self._empty_window()

    def need_snapshot(self) -> None:
        """Switch to SNAPSHOT, because the next entry is no longer in memory."""
        self.state = ProgressState.SNAPSHOT
        self.snapshot_index = 0
        self.snapshot_offset = 0
        self.snapshot_offset_behind = None
        self.snapshot_under_way = False
        self.snapshot_waited_ticks = 0
        self._empty_window()

    def _empty_window(self) -> None:
        self._in_flight.clear()
        self.in_flight_bytes = 0

    def validate(self, last_index: int, limits: RaftLimits) -> None:
        """Assert the invariants between calls."""
        assert 0 <= self.match_index < self.next_index <= last_index + 1
        assert self.in_flight_bytes == sum(size for _, size in self._in_flight)
        assert len(self._in_flight) <= limits.inflight_messages_max
        assert self.state is ProgressState.REPLICATE or not self._in_flight
        indices = [index for index, _ in self._in_flight]
        assert indices == sorted(set(indices))
        assert all(self.match_index < index < self.next_index for index in indices)
