"""Invariants of a Raft group: the safety properties of the paper and of
docs/design/consensus.md#the-raft-core, checked after every step of every replica.

The oracle remembers all commits and leaders across crashes. Numbers in brackets refer to the
project's list of invariants.
"""

from __future__ import annotations

from itertools import pairwise

from ponor_raft.entry import Entry, HardState
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import AppendResponse, Message, VoteRequest, VoteResponse
from ponor_raft.node import RaftNode
from ponor_raft.ready import Persist

MUST_STAY_ZERO = (
    "conflict with a committed entry",
    "second leader in one term",
    "commit beyond the log",
    "acknowledgement beyond the log",
    "snapshot beyond the log",
    "malformed append",
    "malformed chunk",
    "echo of a future round",
)


class DurableLog:
    """The content of one disk: the part of a `Persist` that survives a crash."""

    def __init__(self, membership: Membership) -> None:
        self.hard_state = HardState()
        self.membership = membership
        self.base = (0, 0)
        self.entries: list[Entry] = []

    @property
    def last_index(self) -> int:
        return self.base[0] + len(self.entries)

    def term_at(self, index: int) -> int | None:
        if index == self.base[0]:
            return self.base[1]
        offset = index - self.base[0] - 1
        return self.entries[offset].term if 0 <= offset < len(self.entries) else None

    def write(self, persist: Persist) -> None:
        hard_state, entries = persist.hard_state, persist.entries
        if persist.begins_after is not None:
            self.base, self.entries = persist.begins_after, []
        if hard_state is not None:
            assert hard_state.term >= self.hard_state.term, "[8] terms on a disk never fall"
            if hard_state.term == self.hard_state.term and self.hard_state.voted_for is not None:
                assert hard_state.voted_for == self.hard_state.voted_for, "[8] one vote per term"
            self.hard_state = hard_state
        if not entries:
            return
        first = entries[0].index
        assert first <= self.last_index + 1, "a gap in the log on the disk"
        del self.entries[first - self.base[0] - 1 :]
        self.entries.extend(entries)

    def forget_up_to(self, index: int) -> None:
        if index > self.base[0] and (term := self.term_at(index)) is not None:
            del self.entries[: index - self.base[0]]
            self.base = (index, term)


class Oracle:
    """Checks a whole group, and remembers its history."""

    def __init__(self) -> None:
        self.committed: list[Entry] = []  # entry of index i at i - 1
        self.leaders: dict[int, ReplicaId] = {}
        self.reads_answered = 0
        self._commit_of_life: dict[tuple[ReplicaId, int], int] = {}

    @property
    def commit_index(self) -> int:
        return len(self.committed)

    def saw(self, node: RaftNode, life: int) -> None:
        """Check all invariants; call this after every call into a replica."""
        key = (node.own, life)
        assert node.commit_index >= self._commit_of_life.get(key, 0), "[4] the commit index never goes back"
        self._commit_of_life[key] = node.commit_index
        for reason in MUST_STAY_ZERO:
            assert node.dropped[reason] == 0, f"{node.own.node_id} dropped something as {reason!r}"
        if node.is_leader:
            before = self.leaders.setdefault(node.term, node.own)
            assert before == node.own, f"[1] two leaders in term {node.term}"
        self._note_commits(node)

    def _note_commits(self, node: RaftNode) -> None:
        index = max(self.commit_index + 1, node.first_index)
        if node.commit_index >= index:
            assert index == self.commit_index + 1, "a snapshot contains uncommitted entries"
            self.committed.extend(node.entries(index, node.commit_index))
            self._check_memberships()
        if node.commit_index:
            term = node.term_at(node.commit_index)
            assert term is None or term == self.committed[node.commit_index - 1].term, (
                "[3] what is committed never changes"
            )

    def _check_memberships(self) -> None:
        memberships = [entry.membership for entry in self.committed if entry.membership is not None]
        for before, after in pairwise(memberships):
            assert len(set(before.voters) ^ set(after.voters)) <= 1, "[9] voters change one at a time"

    def became_leader(self, node: RaftNode) -> None:
        """[5] A leader has every committed entry."""
        assert node.last_index >= self.commit_index, f"[5] leader of term {node.term} lacks committed entries"
        for entry in self.committed[max(node.first_index - 1, 0) :]:
            assert node.term_at(entry.index) == entry.term, f"[5] leader of term {node.term} lacks {entry}"

    def delivered(self, entries: tuple[Entry, ...], applied: int, disk: DurableLog) -> None:
        """[3] [6] Committed entries are delivered in order, once, equal on all replicas, and are
        durable at their replica.
        """
        for entry in entries:
            applied += 1
            assert entry.index == applied
            assert entry == self.committed[entry.index - 1], (
                f"[3] {entry} differs from {self.committed[entry.index - 1]}"
            )
        if entries:
            assert disk.term_at(entries[-1].index) == entries[-1].term, (
                "given as committed before it was durable here"
            )

    def leaves(self, message: Message, node: RaftNode, disk: DurableLog, snapshot_index: int) -> None:
        """[7] No message is sent before the state that it promises is durable."""
        hard_state = disk.hard_state
        if isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
            promised = (hard_state.term, hard_state.voted_for)
            assert hard_state.term > message.term or promised == (message.term, message.to), (
                "[7] a vote left before its sync"
            )
        if isinstance(message, VoteRequest) and not message.pre_vote:
            promised = (hard_state.term, hard_state.voted_for)
            assert hard_state.term > message.term or promised == (message.term, message.sender), (
                "[7] a candidacy left before its sync"
            )
        if isinstance(message, AppendResponse) and not message.rejected:
            assert max(disk.last_index, snapshot_index) >= message.match_index, (
                "[7] an acknowledgement left before its sync"
            )
            if node.term == message.term and message.match_index > snapshot_index:
                assert disk.term_at(message.match_index) == node.term_at(message.match_index), (
                    "[7] acknowledged something else"
                )

    def read_answered(self, floor: int, index: int) -> None:
        """[11] A read waits for everything that was committed when it arrived."""
        assert index >= floor, (
            f"[11] a read may see state at {index}, {floor} was committed before it arrived"
        )
        self.reads_answered += 1

    def check_logs(self, nodes: list[RaftNode]) -> None:
        """[2] If two logs agree on an entry, they agree on all entries before it."""
        for position, node in enumerate(nodes):
            for other in nodes[:position]:
                low = max(node.first_index, other.first_index)
                high = min(node.last_index, other.last_index)
                agree = [node.term_at(index) == other.term_at(index) for index in range(low, high + 1)]
                assert agree == sorted(agree, reverse=True), (
                    f"[2] logs of {node.own.node_id} and {other.own.node_id}"
                )
                same = low + sum(agree) - 1
                if same >= low:
                    assert node.entries(low, same) == other.entries(low, same)
