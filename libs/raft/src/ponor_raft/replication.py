"""The leader's half of replication: progress of every other member, batching, flow control, commit index.

`flush` creates the messages once per `Ready`. So all proposals since the last `Ready` form one batch, and the
messages to all followers share one tuple of entries.

Rules:

1. Only an entry of the leader's own term is committed by counting acknowledgements; this also commits all
   earlier entries (Raft, section 5.4.2).
2. The leader counts itself like any other voter, up to its own durable index, even in a group of one
   (etcd-io/etcd #14370). A removed leader that waits for the commit of its removal does not count itself.
3. The commit index in a heartbeat never exceeds the follower's match index (etcd-io/raft PR #149).
"""

from __future__ import annotations

from collections.abc import Mapping

from ponor_raft.entry import Entry
from ponor_raft.follower_progress import FollowerProgress, ProgressState
from ponor_raft.membership import ReplicaId
from ponor_raft.messages import AppendRequest, AppendResponse, HeartbeatRequest
from ponor_raft.replica import Replica


class Replication:
    """Replication during one term of this leader."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._progress: dict[ReplicaId, FollowerProgress] = {}
        self.term_began_at = replica.log.last_index + 1
        self._round = 0
        self.follow_membership()

    @property
    def progress(self) -> Mapping[ReplicaId, FollowerProgress]:
        """Progress of every other member."""
        return self._progress

    @property
    def has_committed_own_term(self) -> bool:
        """Whether an entry of this term is committed, and thus everything that former leaders committed."""
        return self._replica.log.commit >= self.term_began_at

    def follow_membership(self) -> None:
        """Track exactly the members of the current membership."""
        replica = self._replica
        members = replica.membership.members
        next_index = replica.log.last_index + 1
        self._progress = {
            member: self._progress.get(member) or FollowerProgress(next_index)
            for member in members
            if member != replica.own
        }

    def reset_peer(self, peer: ReplicaId) -> None:
        """Reset the progress of `peer`, and send a message with the commit index to it.

        If `peer` has lost nothing, this costs one probe, because the commit index at `peer` never falls.
        """
        progress = self._progress.get(peer)
        if progress is None:
            return
        log = self._replica.log
        progress.acknowledged_index = max(progress.acknowledged_index, progress.match_index)
        if progress.state is ProgressState.SNAPSHOT:
            # The snapshot transfer continues. This message contains the commit index; otherwise the probe
            # contains it.
            self._append(peer, progress, log.last_index, log.last_term, ())
            return
        self._progress[peer] = FollowerProgress(log.last_index + 1, progress.acknowledged_index)

    # --- sending ---

    def flush(self) -> None:
        """Send all pending messages. Before the opening entry of the term is appended, none are sent."""
        if self._replica.log.last_index < self.term_began_at:
            return
        for peer, progress in self._progress.items():
            if progress.state is ProgressState.REPLICATE:
                self._stream(peer, progress)
            elif progress.state is ProgressState.PROBE and not progress.probe_under_way:
                self._send(peer, progress, empty=False)

    def send_heartbeats(self, round_number: int) -> None:
        """Send one round of heartbeats, which wait neither for the disk nor for flow control."""
        replica = self._replica
        self._round = round_number
        for peer, progress in self._progress.items():
            commit = min(progress.match_index, replica.log.commit)
            replica.outbox.send(HeartbeatRequest(replica.own, peer, replica.term, commit, round_number))

    def _stream(self, peer: ReplicaId, progress: FollowerProgress) -> None:
        log = self._replica.log
        while progress.next_index <= log.last_index and not progress.is_window_full(self._replica.limits):
            if not self._send(peer, progress, empty=False):
                return
        if progress.sent_commit < min(log.commit, progress.next_index - 1):
            self._send(peer, progress, empty=True)

    def _send(self, peer: ReplicaId, progress: FollowerProgress, *, empty: bool) -> bool:
        """Send one AppendRequest with entries from next_index on.

        Return False if the follower needs a snapshot instead.
        """
        replica = self._replica
        log = replica.log
        prev_index = progress.next_index - 1
        prev_term = log.term_at(prev_index)
        if prev_term is None:
            progress.need_snapshot()
            return False
        limits = replica.limits
        if empty or prev_index == log.last_index:
            entries: tuple[Entry, ...] = ()
            progress.sent_nothing()
        else:
            entries = log.batch_from(prev_index + 1, limits.append_bytes_max, limits.append_entries_max)
            last_index = entries[-1].index
            progress.sent(last_index, log.bytes_after(prev_index) - log.bytes_after(last_index))
        progress.probe_round = self._round
        self._append(peer, progress, prev_index, prev_term, entries)
        progress.sent_commit = max(progress.sent_commit, min(log.commit, prev_index + len(entries)))
        return True

    def _append(
        self,
        peer: ReplicaId,
        progress: FollowerProgress,
        prev_index: int,
        prev_term: int,
        entries: tuple[Entry, ...],
    ) -> None:
        replica, commit = self._replica, self._replica.log.commit
        commit_term = replica.log.term_at(commit)
        assert commit_term is not None, "the term of the newest committed entry is not in memory"
        acknowledged = max(progress.acknowledged_index, progress.match_index)
        replica.outbox.send(
            AppendRequest(
                replica.own, peer, replica.term, prev_index, prev_term, entries, commit, commit_term, acknowledged  # noqa: E501
            )
        )  # fmt: skip

    # --- answers ---

    def on_response(self, response: AppendResponse) -> bool:
        """Handle a response; return whether the commit index moved."""
        progress = self._progress[response.sender]
        progress.heard_ticks_ago = 0
        if response.rejected:
            self._on_rejection(progress, response)
            return False
        if response.match_index > self._replica.log.last_index:
            self._replica.drop("acknowledgement beyond the log")
            return False
        if progress.state is ProgressState.PROBE and response.match_index >= progress.match_index:
            progress.acknowledged(response.match_index)
            progress.replicate()
        elif not progress.acknowledged(response.match_index):
            return False
        elif (
            progress.state is ProgressState.SNAPSHOT and progress.next_index >= self._replica.log.first_index
        ):
            progress.probe()
        return self.advance_commit()

    def on_heartbeat_response(self, sender: ReplicaId, round_number: int) -> None:
        """Record that the member is alive.

        A message that was sent before this heartbeat and is not answered may be lost, so allow a new probe,
        or send an empty message to find out.
        """
        progress = self._progress[sender]
        progress.heard_ticks_ago = 0
        if progress.state is ProgressState.PROBE:
            progress.probe_under_way = progress.probe_under_way and round_number <= progress.probe_round
        elif (
            progress.state is ProgressState.REPLICATE and progress.match_index < self._replica.log.last_index
        ):
            self._send(sender, progress, empty=True)

    def on_snapshot_installed(self, sender: ReplicaId, index: int) -> bool:
        """Handle an installed snapshot at `index`; return whether the commit index moved."""
        progress = self._progress[sender]
        if index > self._replica.log.last_index:
            self._replica.drop("snapshot beyond the log")
            return False
        moved = progress.acknowledged(index)
        if progress.state is ProgressState.SNAPSHOT:
            progress.probe()
        return moved and self.advance_commit()

    def unreachable(self, peer: ReplicaId) -> None:
        """Handle the probable loss of messages in flight."""
        progress = self._progress.get(peer)
        if progress is not None and progress.state is ProgressState.REPLICATE:
            progress.probe()

    def _on_rejection(self, progress: FollowerProgress, response: AppendResponse) -> None:
        """Probe at the last entry that the follower may also have: its index and its term are at most those
        of the hint.
        """
        meeting_index = response.hint_index
        if response.hint_term > 0:
            meeting_index, _ = self._replica.log.last_at_or_below(response.hint_index, response.hint_term)
        if not progress.refused(response.rejected_index, meeting_index):
            self._replica.drop("old rejection")

    # --- counting ---

    def advance_commit(self) -> bool:
        """Commit entries that are durable at a majority of voters. Return whether the commit index moved."""
        log = self._replica.log
        index = self._reached_by_majority()
        if index <= log.commit or log.term_at(index) != self._replica.term:
            return False
        log.commit_to(index)
        return True

    def _reached_by_majority(self) -> int:
        replica = self._replica
        membership = replica.membership
        own, durable, progress = replica.own, replica.log.durable, self._progress
        reached = [durable if voter == own else progress[voter].match_index for voter in membership.voters]
        reached.sort(reverse=True)
        return min(reached[membership.quorum - 1], replica.log.last_index)

    def tick(self) -> bool:
        """Advance time by one tick; return whether a majority of voters responded within an election timeout
        (check-quorum).
        """
        replica = self._replica
        for progress in self._progress.values():
            progress.heard_ticks_ago += 1
        membership = replica.membership
        silence = sorted(
            0 if voter == replica.own else self._progress[voter].heard_ticks_ago
            for voter in membership.voters
        )
        return silence[membership.quorum - 1] < replica.limits.election_ticks

    def validate(self) -> None:
        """Assert the invariants between calls."""
        replica = self._replica
        assert set(self._progress) == set(replica.membership.members) - {replica.own}
        for progress in self._progress.values():
            progress.validate(replica.log.last_index, replica.limits)
