"""The invariants of a Raft group, by number, checked on disks and messages of all replicas.

They share no code with the core's own asserts.

 1. A term has at most one leader.
 2. Log matching: two entries with the same index and term are equal, and so are the entries before them.
 3. Committed entries never change, not even in a crash.
 4. The commit index of a replica never falls while its process runs.
 5. A leader has every entry committed in earlier terms. It commits only up to an entry of its own term
    (Figure 8 of the paper).
 6. Applied <= committed <= last.
 7. A replica sends a vote or an acknowledgement only after the promised state is durable. The entries
    that a leader commits are durable at a majority.
 8. Term, vote and floor on a disk never go back.
 9. A membership change changes one voter. It begins after the previous change and an entry of the leader's
    term are committed.
10. Snapshots contain committed entries only. All replicas have the same digest at an index.
11. A linearizable read includes everything acknowledged before its request.
47. A voter that lost committed entries, and then received a leader's message, does not vote for a
    candidate that lacks these entries, itself included.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import AppendResponse, Message, SnapshotAck, VoteRequest, VoteResponse
from ponor_raft.node import RaftNode
from ponor_raft.ready import Role

from ponor_cluster_simulation.raft_cluster.disk import RaftDisk
from ponor_cluster_simulation.raft_cluster.replica import Replica


class InvariantError(AssertionError):
    """An invariant is broken; the message begins with its number."""


def _require(condition: bool, number: int, what: str) -> None:
    if not condition:
        raise InvariantError(f"invariant {number}: {what}")


class RaftInvariants:
    """The checks of one run. Their state survives all crashes."""

    def __init__(self, disks: Callable[[], Iterable[tuple[ReplicaId, RaftDisk]]]) -> None:
        self._disks = disks
        self._leader_of: dict[int, ReplicaId] = {}
        self._entries: dict[tuple[int, int], tuple[int, bytes, Membership | None]] = {}
        """(index, term) to (term of the entry before, data, membership)."""
        self.committed: list[tuple[int, bytes]] = []
        """Term and data of each committed entry, from index 1 on."""
        self._committed_in: list[int] = []
        """The term of the leader that committed each entry; it never falls."""
        self._digests: dict[int, bytes] = {}
        self._seen: dict[tuple[ReplicaId, int], tuple[int, int]] = {}
        """By life of a replica: the last checked commit index, and the term that the replica led then (0 if
        none).
        """
        self.acknowledged_index = 0
        self._lost_until: dict[ReplicaId, int] = {}

    @property
    def commit_index(self) -> int:
        """The highest index that any leader committed."""
        return len(self.committed)

    # --- leaders and entries ---

    def leads(self, replica: Replica, node: RaftNode, term: int) -> None:
        """Check a new leader."""
        other = self._leader_of.setdefault(term, replica.own)
        _require(other == replica.own, 1, f"{replica.name} leads term {term}, and so does {other.node_id}")
        newest = bisect_left(self._committed_in, term)
        if newest and newest > replica.state.index:
            found = node.term_at(newest)
            _require(
                found == self.committed[newest - 1][0],
                5,
                f"{replica.name} leads term {term} and has an entry of term {found} at index {newest},"
                " but the"
                f" committed entry has term {self.committed[newest - 1][0]}",
            )

    def wrote(self, replica: Replica, entries: tuple[Entry, ...], term_before: int | None) -> None:
        """Check entries that a replica appended; `term_before` is the term before the first, None
        if unknown.
        """
        for entry in entries:
            known = self._entries.get((entry.index, entry.term))
            if known is None:
                if term_before is not None:
                    self._entries[entry.index, entry.term] = (term_before, entry.data, entry.membership)
            else:
                same = known[1:] == (entry.data, entry.membership) and term_before in {None, known[0]}
                _require(
                    same,
                    2,
                    f"{replica.name} has another entry at index {entry.index} of term {entry.term}"
                    " than other replicas,"
                    " or another entry before it",
                )
            term_before = entry.term

    def changes(
        self, replica: Replica, node: RaftNode, before: Membership, after: Membership, settled: bool
    ) -> None:
        """Check an accepted membership change.

        `settled`: the previous change and an entry of the leader's term were committed.
        """
        moved = set(before.voters) ^ set(after.voters)
        _require(len(moved) <= 1, 9, f"{replica.name} changes {len(moved)} voters at once")
        _require(
            settled or before == after,
            9,
            f"{replica.name} changes the membership in term {node.term} before the previous change and the"
            " first entry of the term are committed",
        )

    # --- after each call ---

    def look(self, replica: Replica, node: RaftNode) -> None:
        """Check the indexes of a replica after it executed all instructions."""
        commit, last, applied = node.commit_index, node.last_index, replica.state.index
        if not applied <= commit <= last:
            _require(
                False,
                6,
                f"{replica.name}: applied index {applied}, commit index {commit}, last index {last}",
            )
        life = (replica.own, replica.life)
        before, led = self._seen.get(life, (0, 0))
        leads = node.term if node.role is Role.LEADER else 0
        if commit == before and leads == led:
            return
        _require(commit >= before, 4, f"the commit index of {replica.name} fell from {before} to {commit}")
        self._seen[life] = (commit, leads)
        if commit > self.commit_index:
            # A leader that commits its own removal is a follower afterwards.
            _require(
                node.term in {leads, led},
                3,
                f"{replica.name} is a follower with commit index {commit}; no leader has committed more than"
                f" {self.commit_index}",
            )
            self._commit(replica, node, commit)

    def _commit(self, replica: Replica, node: RaftNode, commit: int) -> None:
        """Check a leader's new commit index: the entries must be durable at a majority."""
        term = node.term_at(commit)
        assert term is not None, "the leader must have the committed entry in memory"
        _require(
            term == node.term,
            5,
            f"{replica.name} leads term {node.term} and commits up to {commit}, an entry of term {term}",
        )
        holders = {own for own, disk in self._disks() if disk.holds(commit, term)}
        voters = node.membership.voters
        durable = sum(1 for voter in voters if voter in holders)
        _require(
            durable >= node.membership.quorum,
            7,
            f"{replica.name} committed {commit} in term {node.term}, which is durable at {durable} of"
            f" {len(voters)} voters",
        )
        for entry in node.entries(self.commit_index + 1, commit):
            self.committed.append((entry.term, entry.data))
            self._committed_in.append(node.term)

    def applied(self, replica: Replica, entry: Entry) -> None:
        """Check an applied entry."""
        index, term = entry.index, entry.term
        _require(
            index <= self.commit_index,
            3,
            f"{replica.name} applied index {index}, but the commit index is {self.commit_index}",
        )
        committed = self.committed[index - 1][0]
        _require(
            term == committed,
            3,
            f"{replica.name} applied an entry of term {term} at index {index}, but the committed entry has"
            f" term {committed}",
        )
        self.digest(replica, index, replica.state.digest)

    def digest(self, replica: Replica, index: int, digest: bytes) -> None:
        """Check the digest of a replica's state."""
        known = self._digests.setdefault(index, digest)
        _require(
            known == digest, 10, f"{replica.name} has another state at index {index} than other replicas"
        )

    # --- disks, messages, snapshots, reads ---

    def hard_state(self, name: str, before: HardState, after: HardState) -> None:
        """Check a newly durable hard state."""
        forward = after.floor >= before.floor and (
            after.term > before.term
            or (after.term == before.term and before.voted_for in {None, after.voted_for})
        )
        _require(forward, 8, f"the hard state on the disk of {name} went back from {before} to {after}")

    def sends(self, replica: Replica, message: Message) -> None:
        """Check a message that is sent."""
        disk = replica.disk
        if isinstance(message, VoteResponse):
            if message.granted and not message.pre_vote:
                self._promised(replica, message.term, message.to)
        elif isinstance(message, VoteRequest):
            if not message.pre_vote:
                self._promised(replica, message.term, replica.own)
        elif isinstance(message, AppendResponse):
            if not message.rejected:
                durable = disk.last_index
                _require(
                    message.match_index <= durable,
                    7,
                    f"{replica.name} acknowledges index {message.match_index}, but its log is durable"
                    f" to {durable}",
                )
                _require(
                    message.term <= disk.hard_state.term,
                    7,
                    f"{replica.name} acknowledges in term {message.term}, but its durable term is"
                    f" {disk.hard_state.term}",
                )
        elif isinstance(message, SnapshotAck) and message.installed:
            _require(
                message.index <= disk.last_index,
                7,
                f"{replica.name} acknowledges a snapshot at {message.index}, but its log is durable to"
                f" {disk.last_index}",
            )

    def expect_catch_up(self, own: ReplicaId) -> None:
        """Note a voter whose disk was replaced by an older copy. It receives a leader's message with the
        commit index before it votes.
        """
        self._lost_until[own] = self.commit_index

    def snapshot(self, replica: Replica, meta: SnapshotMeta) -> None:
        """Check a durable snapshot."""
        _require(
            meta.index <= self.commit_index,
            10,
            f"{replica.name} has a snapshot at {meta.index}, but the commit index is {self.commit_index}",
        )
        if meta.index:
            _require(
                meta.term == self.committed[meta.index - 1][0],
                10,
                f"the snapshot of {replica.name} at {meta.index} has another term than the committed entry",
            )
            self.digest(replica, meta.index, meta.digest)

    def acknowledged(self, index: int) -> None:
        """Note an acknowledged command."""
        self.acknowledged_index = max(self.acknowledged_index, index)

    def read(self, replica: Replica, index: int, floor: int) -> None:
        """Check the index of a read; `floor` was the highest acknowledged index when the read began."""
        _require(
            index >= floor,
            11,
            f"{replica.name} reads at index {index}, but {floor} was acknowledged before the read began",
        )
        _require(
            index <= self.commit_index,
            11,
            f"{replica.name} reads at index {index}, but the commit index is {self.commit_index}",
        )

    def _promised(self, replica: Replica, term: int, candidate: ReplicaId) -> None:
        lost_until = self._lost_until.get(replica.own, 0)
        if lost_until and (candidate == replica.own or candidate not in self._lost_until):
            # A candidate's log is durable before it requests votes.
            disks = dict(self._disks())
            _require(
                disks[candidate].holds(lost_until, self.committed[lost_until - 1][0]),
                47,
                f"{replica.name} lost committed entries up to {lost_until} and votes for {candidate.node_id},"
                f" which lacks {lost_until}",
            )
        durable = replica.disk.hard_state
        kept = durable.term > term or (durable.term == term and durable.voted_for == candidate)
        _require(
            kept,
            7,
            f"{replica.name} votes for {candidate.node_id} in term {term}, but its durable term is"
            f" {durable.term} with the vote {durable.voted_for}",
        )
