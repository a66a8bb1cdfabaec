"""The leader role in one term: heartbeats, check-quorum, proposals, responses of members, commit index.

Created when the replica becomes leader and discarded when it loses leadership.
"""

from __future__ import annotations

from ponor_raft.entry import Entry
from ponor_raft.errors import NotLeaderError, ProposalsFullError
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.membership_change import check_change
from ponor_raft.messages import AppendResponse, HeartbeatResponse, ReadIndexRequest, SnapshotAck, TimeoutNow
from ponor_raft.reads import ReadRounds
from ponor_raft.replica import Replica
from ponor_raft.replication import Replication
from ponor_raft.snapshot_transfer import SnapshotSending
from ponor_raft.transfer import Transfer


class Leading:
    """One term of leadership."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._heartbeat_elapsed_ticks = 0
        self.replication = Replication(replica)
        self.reads = ReadRounds(replica, self.replication)
        self.transfer = Transfer(replica, self.replication)
        self.snapshots = SnapshotSending(replica, self.replication)

    def begin(self) -> None:
        """Send the first heartbeats immediately, because other replicas may be about to campaign."""
        self.reads.begin_round()

    def tick(self) -> bool:
        """Advance the timers; return False if this leader must step down (check-quorum failed)."""
        if not self.replication.tick():
            return False
        self.transfer.tick()
        self.snapshots.tick()
        self._heartbeat_elapsed_ticks += 1
        if self._heartbeat_elapsed_ticks >= self._replica.limits.heartbeat_ticks:
            self._heartbeat_elapsed_ticks = 0
            self.reads.begin_round()
            self.transfer.repeat()
        return True

    def flush(self) -> None:
        """Create the messages for everything that changed since the last call."""
        self.replication.flush()
        self.snapshots.flush()
        self.reads.flush()

    # --- proposals ---

    def propose(self, data: bytes, membership: Membership | None) -> Entry:
        """Append one entry, as specified by `RaftNode.propose`."""
        replica = self._replica
        if self.transfer.target is not None:
            raise NotLeaderError(
                f"leadership is being transferred to node {self.transfer.target.node_id}; propose there, or"
                " retry later"
            )
        if (problem := self.room_problem(len(data))) is not None:
            raise ProposalsFullError(problem)
        if membership is not None:
            check_change(replica, self.replication, membership)
        log = replica.log
        entry = Entry(log.last_index + 1, replica.term, data, membership)
        log.append_one(entry)
        if membership is not None:
            replica.configurations.append((entry,))
            self.replication.follow_membership()
        return entry

    def room_problem(self, size_bytes: int) -> str | None:
        """Return why a proposal of this size does not fit; None if it fits.

        A proposal always fits if no other one is uncommitted; uncommitted entries of former leaders do not
        count.
        """
        limits = self._replica.limits
        log = self._replica.log
        since = max(log.commit, self.replication.term_began_at - 1)
        uncommitted = log.last_index - since
        if uncommitted and (
            uncommitted >= limits.uncommitted_entries_max
            or log.bytes_after(since) + size_bytes > limits.uncommitted_bytes_max
        ):
            return f"{uncommitted} proposals wait to be committed; wait for commits, then propose again"
        if uncommitted and (
            len(log) >= limits.window_entries_max or log.size_bytes + size_bytes > limits.window_bytes_max
        ):
            return (
                f"{len(log)} entries ({log.size_bytes} bytes) are in memory; take a snapshot and compact"
                " the log"
            )
        return None

    # --- answers ---

    def on_append_response(self, response: AppendResponse) -> bool:
        """Handle an acknowledgement; return whether the commit index moved."""
        moved = self.replication.on_response(response)
        self.transfer.start_election_when_caught_up()
        return moved

    def on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        """Handle a member's answer to a heartbeat."""
        self.replication.on_heartbeat_response(response.sender, response.round)
        self.reads.on_echo(response.sender, response.round)

    def on_snapshot_ack(self, ack: SnapshotAck) -> bool:
        """Handle a response to a snapshot chunk; return whether the commit index moved."""
        return self.snapshots.on_ack(ack)

    def on_read_request(self, request: ReadIndexRequest) -> None:
        """Handle a read forwarded by a follower."""
        self.reads.add(request.sender, request.context)

    def unreachable(self, peer: ReplicaId) -> None:
        """Handle a failed send."""
        self.replication.unreachable(peer)
        self.snapshots.unreachable(peer)

    def is_dismissed(self) -> bool:
        """Whether the removal of this replica is committed.

        A removed leader continues until then, because the other replicas may not have the entry yet
        (etcd-io/raft #83).
        """
        replica = self._replica
        return not replica.is_voter and replica.configurations.current_index <= replica.log.commit

    def announce_removal(self) -> None:
        """Send to all members the commit index that covers the removal, and send `TimeoutNow` to the most
        up-to-date voter.
        """
        replica = self._replica
        self.replication.flush()
        progress = self.replication.progress
        successor = max(replica.membership.voters, key=lambda voter: progress[voter].match_index)
        replica.outbox.send(TimeoutNow(replica.own, successor, replica.term))

    def validate(self) -> None:
        """Assert the invariants between calls."""
        self.replication.validate()
        self.reads.validate()
        assert self.transfer.target is None or self.transfer.target in self._replica.membership.voters
