"""A follower whose last write was damaged without a proof of its sync: it restarts with less than
it acknowledged, and receives the entries again.
"""

from __future__ import annotations

from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.limits import RaftLimits
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import Message
from ponor_raft.node import RaftNode
from ponor_raft.stored import StoredState

IDS = [ReplicaId(number, bytes([number]) * 16) for number in (1, 2, 3)]
BASE = SnapshotMeta(0, 0, Membership(tuple(IDS)), bytes(16), 0)
LIMITS = RaftLimits(election_ticks=6, heartbeat_ticks=2)


class Owner:
    """A replica with a fast disk."""

    def __init__(self, own: ReplicaId, entries: list[Entry], hard_state: HardState) -> None:
        self.entries = entries
        self.hard_state = hard_state
        stored = StoredState(hard_state, BASE, tuple(entries), 0, (0, 0))
        self.node = RaftNode(own, LIMITS, stored, lambda below: own.node_id % below)
        self._opened = False

    def messages(self) -> list[Message]:
        """Complete all pending work; return the messages to others."""
        said: list[Message] = []
        while (ready := self.node.ready()) is not None:
            self.node.validate()
            said += ready.messages
            if ready.persist is not None:
                self.hard_state = ready.persist.hard_state or self.hard_state
                for entry in ready.persist.entries:
                    del self.entries[entry.index - 1 :]
                    self.entries.append(entry)
                self.node.persisted(ready.persist.sequence)
                said += ready.persist.messages
            if self.node.is_leader and not self._opened:
                self._opened = True
                self.node.propose(b"")
        return said


def settle(owners: dict[ReplicaId, Owner], ticks: int = 0) -> None:
    """Tick the leader and deliver all messages."""
    for _ in range(ticks + 1):
        waiting = [message for owner in owners.values() for message in owner.messages()]
        while waiting:
            for message in waiting:
                owners[message.to].node.step(message)
            waiting = [message for owner in owners.values() for message in owner.messages()]
        owners[IDS[0]].node.tick()


def test_the_leader_resends_the_lost_entries_and_the_commit_index_stays() -> None:
    owners = {own: Owner(own, [], HardState()) for own in IDS}
    settle(owners, ticks=20)
    leader, lame = owners[IDS[0]].node, IDS[1]
    assert leader.is_leader
    for _ in range(3):
        leader.propose(b"x")
    settle(owners, ticks=3)
    committed = leader.commit_index
    assert leader.progress()[lame].match_index == committed == leader.last_index
    owners[lame] = Owner(lame, owners[lame].entries[:-1], owners[lame].hard_state)
    leader.peer_restarted(lame)
    assert leader.commit_index == committed
    settle(owners, ticks=6)
    assert owners[lame].node.last_index == leader.progress()[lame].match_index == committed
    leader.propose(b"y")
    settle(owners, ticks=3)
    assert owners[lame].node.commit_index == leader.commit_index == committed + 1


def test_without_a_new_stream_a_refusal_of_confirmed_entries_counts_as_old() -> None:
    """Therefore the owner must report the new stream."""
    owners = {own: Owner(own, [], HardState()) for own in IDS}
    settle(owners, ticks=20)
    leader, lame = owners[IDS[0]].node, IDS[1]
    leader.propose(b"x")
    settle(owners, ticks=3)
    owners[lame] = Owner(lame, owners[lame].entries[:-1], owners[lame].hard_state)
    leader.propose(b"y")
    settle(owners, ticks=10)
    assert owners[lame].node.last_index < leader.last_index
    assert leader.dropped["old rejection"] > 0
    leader.peer_restarted(lame)
    settle(owners, ticks=6)
    assert owners[lame].node.last_index == leader.last_index
