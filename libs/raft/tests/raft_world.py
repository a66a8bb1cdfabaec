"""A Raft group with faults: a network that loses, repeats and reorders messages, disks that lose
unsynced data, and owners that write late, take snapshots and crash.

Every step is chosen by a number, so a failing run is a list of numbers that can be shortened.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

from ponor_raft.entry import Entry, SnapshotMeta
from ponor_raft.errors import MembershipChangeError, NotLeaderError, ProposalsFullError, TransferError
from ponor_raft.limits import RaftLimits
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import Message, SnapshotChunk
from ponor_raft.node import RaftNode
from ponor_raft.ready import Leadership, Persist, Ready, Role, SendSnapshot
from ponor_raft.stored import StoredState

from libs.raft.tests.raft_oracle import DurableLog, Oracle

LIMITS = RaftLimits(
    election_ticks=6,
    heartbeat_ticks=2,
    suspicion_ticks=1,
    append_bytes_max=40,
    append_entries_max=3,
    inflight_messages_max=3,
    inflight_bytes_max=100,
    uncommitted_bytes_max=200,
    uncommitted_entries_max=12,
    reads_max=4,
    transfer_ticks=6,
    snapshot_retry_ticks=4,
    window_entries_max=500,
    promotion_lag_entries_max=4,
)
CHUNK_BYTES = 24


def replica_id(node_id: int) -> ReplicaId:
    return ReplicaId(node_id, bytes([node_id]) * 16)


def body_at(index: int, oracle: Oracle) -> bytes:
    """The state after `index`, as in a snapshot."""
    return b"".join(entry.data for entry in oracle.committed[:index])


class Member:
    """One replica with its state machine, disk and snapshots."""

    def __init__(self, own: ReplicaId, membership: Membership, world: World) -> None:
        self.own = own
        self.disk = DurableLog(membership)
        self.snapshot = SnapshotMeta(0, 0, membership, bytes(16), 0)
        self.body = b""
        self.life = 0
        self._world = world
        self.start()

    def start(self) -> None:
        self.life += 1
        base = self.snapshot
        stored = StoredState(self.disk.hard_state, base, tuple(self.disk.entries), base.index, self.disk.base)
        self.node: RaftNode | None = RaftNode(
            self.own, self._world.limits, stored, self._world.chance_of(self)
        )
        self.writing: deque[Persist] = deque()
        self.applied = base.index
        self.receiving: tuple[int, bytes] = (0, b"")
        self.reads: dict[int, int] = {}
        self.settle()

    def crash(self, written: int) -> None:
        """Crash: the first `written` of the pending writes reach the disk, the others are lost."""
        for persist in list(self.writing)[:written]:
            self.disk.write(persist)
        self.node = None

    def call(self, action: Callable[[RaftNode], object]) -> None:
        if self.node is not None:
            action(self.node)
            self.node.validate()
            self.settle()

    def settle(self) -> None:
        """Execute the replica's instructions; writes wait for `finish_write`."""
        node = self.node
        assert node is not None
        self._world.oracle.saw(node, self.life)
        while (ready := node.ready()) is not None:
            node.validate()
            self._carry_out(node, ready)
            self._world.oracle.saw(node, self.life)

    def _carry_out(self, node: RaftNode, ready: Ready) -> None:
        oracle = self._world.oracle
        if ready.persist is not None:
            self.writing.append(ready.persist)
        self._send(node, ready.messages)
        if ready.leadership is not None:
            self._world.note(self.own, leadership_in_words(ready.leadership))
        oracle.delivered(ready.committed, self.applied, self.disk)
        if ready.committed:
            self._world.note(
                self.own, "commits " + " ".join(f"{entry.index}@{entry.term}" for entry in ready.committed)
            )
        self.applied += len(ready.committed)
        for read in ready.reads:
            floor = self.reads.pop(read.context)
            self._world.note(
                self.own,
                f"read {read.context} " + ("is refused" if read.index is None else f"waits for {read.index}"),
            )
            if read.index is not None:
                oracle.read_answered(floor, read.index)
        for chunk in ready.chunks:
            self._keep(node, chunk)
        for wanted in ready.snapshots:
            self._send_chunk(wanted)
        if ready.leadership is not None and ready.leadership.role is Role.LEADER:
            oracle.became_leader(node)
            node.propose(b"")

    def _send(self, node: RaftNode, messages: tuple[Message, ...]) -> None:
        for message in messages:
            self._world.oracle.leaves(message, node, self.disk, self.snapshot.index)
            self._world.network.append(message)

    def finish_write(self) -> None:
        if self.writing and self.node is not None:
            persist = self.writing.popleft()
            self.disk.write(persist)
            self.node.persisted(persist.sequence)
            self.node.validate()
            self._send(self.node, persist.messages)
            self.settle()

    # --- snapshots ---

    def take_snapshot(self, trailing: int) -> None:
        node = self.node
        if node is None or self.applied <= self.snapshot.index or self.writing:
            return
        index = self.applied
        term = self._world.oracle.committed[index - 1].term
        self.body = body_at(index, self._world.oracle)
        self.snapshot = SnapshotMeta(
            index, term, node.membership_at(index), digest(self.body), len(self.body)
        )
        node.snapshot_available(self.snapshot)
        self.disk.forget_up_to(index - trailing)
        if index - trailing >= 1:
            node.compact(index - trailing)

    def _send_chunk(self, wanted: SendSnapshot) -> None:
        offset = wanted.offset if wanted.index == self.snapshot.index else 0
        data = self.body[offset : offset + CHUNK_BYTES]
        self._world.network.append(
            SnapshotChunk(self.own, wanted.to, wanted.term, self.snapshot, offset, data)
        )

    def _keep(self, node: RaftNode, chunk: SnapshotChunk) -> None:
        index, body = self.receiving
        if index != chunk.meta.index:
            index, body = chunk.meta.index, b""
        if chunk.offset <= len(body):
            body = body[: chunk.offset] + chunk.data if chunk.offset + len(chunk.data) > len(body) else body
        self.receiving = (index, body)
        node.keep_chunk(chunk, len(body))
        if len(body) == chunk.meta.size_bytes:
            assert digest(body) == chunk.meta.digest
            assert body == body_at(chunk.meta.index, self._world.oracle), (
                "[10] a snapshot differs from what was committed"
            )
            if chunk.meta.index > self.applied:
                self.snapshot, self.body = chunk.meta, body
                self.applied = chunk.meta.index
                self._world.note(self.own, f"begins behind the snapshot at {chunk.meta.index}")
            node.restore(chunk.meta)
            node.validate()


def leadership_in_words(leadership: Leadership) -> str:
    """Describe the replica's role."""
    leader = leadership.leader
    if leadership.role is Role.FOLLOWER:
        return f"follows {leader.node_id if leader is not None else 'no leader'} in term {leadership.term}"
    return f"is {leadership.role.value} in term {leadership.term}"


def digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


class World:
    """Members, a network between them, and an oracle."""

    def __init__(self, seed: int, voters: int, spare: int = 0, limits: RaftLimits = LIMITS) -> None:
        self.seed = seed
        self.limits = limits
        self.oracle = Oracle()
        self.network: list[Message] = []
        self.blocked: set[tuple[ReplicaId, ReplicaId]] = set()
        self.paused: set[ReplicaId] = set()
        self._contexts = count(1)
        self._values = count(1)
        ids = [replica_id(node_id) for node_id in range(1, voters + spare + 1)]
        membership = Membership(tuple(ids[:voters]))
        self.members = {
            own: Member(own, membership if own in ids[:voters] else Membership(()), self) for own in ids
        }
        self._actions = self._draw_actions(random.Random(seed))

    def _draw_actions(self, chance: random.Random) -> list[Callable[[int], object]]:
        """Every world has its own probability of each fault (swarm testing)."""
        usual: list[Callable[[int], object]] = (
            [self._deliver] * 60
            + [self._tick] * 12
            + [self._write] * 30
            + [self._propose] * 12
            + [self._restart] * 3
            + [self._heal]
        )
        for fault in (
            self._read, self._lose, self._repeat, self._crash, self._suspect, self._unreachable, self._transfer,  # noqa: E501
            self._change, self._snapshot, self._block, self._step_down, self._skew,
            self._pause,
        ):  # fmt: skip
            usual += [fault] * chance.choice((0, 1, 1, 3, 6))
        return usual

    def chance_of(self, member: Member) -> Callable[[int], int]:
        """Each life of each member has its own random numbers."""
        return random.Random(self.seed * 1000 + member.own.node_id * 50 + member.life).randrange

    def note(self, own: ReplicaId, text: str) -> None:
        """Record an event at `own`; scripts compare these lines."""

    def act(self, number: int) -> None:
        """Make one step; the number selects its kind, its members and its details."""
        number, kind = divmod(number, len(self._actions))
        self._actions[kind](number)

    # --- the parts of a step ---

    def _pick(self, number: int) -> tuple[Member, int]:
        members = list(self.members.values())
        rest, position = divmod(number, len(members))
        return members[position], rest

    def _pick_leader(self, number: int) -> Member | None:
        leaders = [
            member for member in self.members.values() if member.node is not None and member.node.is_leader
        ]
        return leaders[number % len(leaders)] if leaders else None

    def _deliver(self, number: int) -> None:
        """Deliver a message: usually the oldest, sometimes a later one."""
        if not self.network:
            return
        position = 0 if number % 4 else (number // 4) % len(self.network)
        message = self.network.pop(position)
        self.hand_over(message)

    def hand_over(self, message: Message) -> None:
        if (message.sender, message.to) not in self.blocked:
            self.members[message.to].call(lambda node: node.step(message))

    def _lose(self, number: int) -> None:
        if self.network:
            self.network.pop(number % len(self.network))

    def _repeat(self, number: int) -> None:
        if self.network:
            self.network.append(self.network[number % len(self.network)])

    def _tick(self, number: int) -> None:
        """Tick one member, or all."""
        member, rest = self._pick(number)
        for each in [member] if rest % 2 else list(self.members.values()):
            if each.own not in self.paused:
                each.call(lambda node: node.tick())

    def _skew(self, number: int) -> None:
        """Tick one member several times, like a fast clock or a resumed process."""
        member, rest = self._pick(number)
        for _ in range(rest % (2 * self.limits.election_ticks)):
            member.call(lambda node: node.tick())

    def _write(self, number: int) -> None:
        self._pick(number)[0].finish_write()

    def _crash(self, number: int) -> None:
        member, rest = self._pick(number)
        if member.node is not None:
            member.crash(rest % (len(member.writing) + 1))

    def _restart(self, number: int) -> None:
        member, _ = self._pick(number)
        if member.node is None:
            member.start()

    def _propose(self, number: int) -> None:
        leader = self._pick_leader(number)
        if leader is not None:
            data = b"%d;" % next(self._values)
            leader.call(lambda node: attempt(lambda: node.propose(data)))

    def _read(self, number: int) -> None:
        """Propose, usually at a member that believes to lead."""
        member = self._pick_leader(number // 2) or self._pick(number)[0]
        if number % 3 == 0:
            member, _ = self._pick(number)
        if member.node is not None:
            context = next(self._contexts)
            member.reads[context] = self.oracle.commit_index
            member.call(lambda node: node.read_index(context))

    def _transfer(self, number: int) -> None:
        leader = self._pick_leader(number)
        target, _ = self._pick(number)
        if leader is not None:
            leader.call(lambda node: attempt(lambda: node.transfer(target.own)))

    def _change(self, number: int) -> None:
        leader = self._pick_leader(number)
        if leader is None or leader.node is None:
            return
        subject, rest = self._pick(number)
        rest, where = divmod(rest, 3)
        wanted = moved(leader.node.membership, subject.own, where)
        if rest % 4 == 0:  # usually too many voters at once
            also, rest = self._pick(rest // 4)
            wanted = moved(wanted, also.own, rest % 3)
        leader.call(lambda node: attempt(lambda: node.propose(b"change;", wanted)))

    def _snapshot(self, number: int) -> None:
        member, rest = self._pick(number)
        member.take_snapshot(rest % 3)
        member.call(lambda node: node.validate())

    def _suspect(self, number: int) -> None:
        member, rest = self._pick(number)
        other, _ = self._pick(rest)
        member.call(lambda node: node.suspect_leader(other.own))

    def _unreachable(self, number: int) -> None:
        member, rest = self._pick(number)
        other, _ = self._pick(rest)
        member.call(lambda node: node.unreachable(other.own))

    def _step_down(self, number: int) -> None:
        leader = self._pick_leader(number)
        if leader is not None and number % 3 == 0:
            leader.call(lambda node: node.step_down("asked"))

    def _block(self, number: int) -> None:
        member, rest = self._pick(number)
        other, rest = self._pick(rest)
        self.blocked.add((member.own, other.own))
        if rest % 2:
            self.blocked.add((other.own, member.own))

    def _pause(self, number: int) -> None:
        """Pause a leader: it receives no message and no tick, and gets a read as soon as it resumes."""
        leader = self._pick_leader(number)
        if leader is not None:
            self.paused.add(leader.own)
            for own in self.members:
                self.blocked |= {(leader.own, own), (own, leader.own)}

    def _heal(self, _: int) -> None:
        self.blocked.clear()
        self.paused.clear()

    # --- the end ---

    def check(self) -> None:
        self.oracle.check_logs([member.node for member in self.members.values() if member.node is not None])

    def recover(self, rounds_max: int = 400) -> None:
        """Repair all faults and check that the group works again: a leader, a commit, and every
        member at its index.
        """
        self.blocked.clear()
        self.paused.clear()
        for member in self.members.values():
            if member.node is None:
                member.start()
        goal: Entry | None = None
        for _ in range(rounds_max):
            self._calm_round()
            goal = goal if goal is not None and self._is_alive(goal) else self._propose_goal()
            if goal is not None and self._has_arrived(goal):
                self.check()
                return
        raise AssertionError(f"no progress after {rounds_max} calm rounds: {self.describe()}")

    def _calm_round(self) -> None:
        for member in self.members.values():
            member.call(lambda node: node.tick())
        for _ in range(6):
            for member in self.members.values():
                while member.writing:
                    member.finish_write()
            messages, self.network = self.network, []
            for message in messages:
                self.hand_over(message)

    def _propose_goal(self) -> Entry | None:
        leader = self._pick_leader(0)
        if leader is None or leader.node is None:
            return None
        try:
            goal = leader.node.propose(b"goal;")
        except (NotLeaderError, ProposalsFullError):
            return None
        leader.settle()
        return goal

    def _is_alive(self, goal: Entry) -> bool:
        return any(
            member.node is not None and goal.term == member.node.term_at(goal.index)
            for member in self.members.values()
        )

    def _has_arrived(self, goal: Entry) -> bool:
        leader = self._pick_leader(0)
        if leader is None or leader.node is None:
            return False
        return all(self.members[own].applied >= goal.index for own in leader.node.membership.members)

    def describe(self) -> str:
        return "; ".join(
            f"{own.node_id}: {member.node.role.value} term {member.node.term} commit"
            f" {member.node.commit_index} last {member.node.last_index}"
            for own, member in self.members.items()
            if member.node is not None
        )


def moved(membership: Membership, subject: ReplicaId, where: int) -> Membership:
    """Change the membership: `subject` becomes a voter (0), a learner (1) or neither (2)."""
    voters = tuple(
        sorted({*membership.voters, subject} if where == 0 else set(membership.voters) - {subject})
    )
    learners = tuple(
        sorted({*membership.learners, subject} if where == 1 else set(membership.learners) - {subject})
    )
    return replace(membership, voters=voters, learners=learners)


def attempt(action: Callable[[], object]) -> None:
    """A refusal is an acceptable outcome."""
    with suppress(NotLeaderError, ProposalsFullError, MembershipChangeError, TransferError):
        action()
