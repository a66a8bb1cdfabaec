"""One replica: the shipped core, a disk, a state machine, and the duties that `ponor_raft.node` requires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from ponor_raft.entry import Entry, SnapshotMeta
from ponor_raft.limits import RaftLimits
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import Message, SnapshotChunk
from ponor_raft.node import RaftNode
from ponor_raft.ready import Leadership, Persist, ReadReady, Ready, Role, SendSnapshot

from ponor_cluster_simulation.raft_cluster.disk import RaftDisk, StoredSnapshot
from ponor_cluster_simulation.raft_cluster.state_machine import DIGEST_BYTES, Registers

READIES_MAX = 1000
"""Maximum number of `ready` rounds after one call; more rounds are an endless loop."""
NO_MEMBERS = Membership(())


class World(Protocol):
    """The interface through which a replica reports events to its group."""

    def send(self, replica: Replica, message: Message) -> None:
        """Send a message."""

    def write_begun(self, replica: Replica) -> None:
        """The disk has one more write in flight."""

    def leadership_changed(self, replica: Replica, leadership: Leadership) -> None:
        """The core reported a change of leadership."""

    def wrote(self, replica: Replica, entries: tuple[Entry, ...], term_before: int | None) -> None:
        """The core appended entries; `term_before` is the term before them, None if it is not in memory."""

    def applied(self, replica: Replica, entry: Entry) -> None:
        """An entry was applied."""

    def snapshot_stored(self, replica: Replica, meta: SnapshotMeta) -> None:
        """The replica's own or a received snapshot is durable."""

    def installed(self, replica: Replica) -> None:
        """A received snapshot became the state."""

    def read_ready(self, replica: Replica, read: ReadReady) -> None:
        """The core answered `RaftNode.read_index`."""

    def look(self, replica: Replica) -> None:
        """The core may have advanced; called before entries are applied."""

    def pumped(self, replica: Replica) -> None:
        """All instructions are executed."""


@dataclass(frozen=True, slots=True)
class SnapshotHabits:
    """When snapshots are taken, and the size of their chunks."""

    every_entries: int
    trailing_entries: int
    chunk_bytes: int


@dataclass(slots=True)
class _Receiving:
    """A snapshot body that is being received."""

    meta: SnapshotMeta
    body: bytearray = field(default_factory=bytearray)
    stored: bool = False


def blank_disk(initial: Membership = NO_MEMBERS) -> RaftDisk:
    """A formatted disk; without `initial` members the replica waits to be added."""
    meta = SnapshotMeta(0, 0, initial, bytes(DIGEST_BYTES), 0)
    return RaftDisk(StoredSnapshot(meta, Registers().encode()))


class Replica:
    """One replica; `node` is None while the process is down."""

    def __init__(
        self,
        own: ReplicaId,
        disk: RaftDisk,
        limits: RaftLimits,
        habits: SnapshotHabits,
        chance: Random,
        world: World,
    ) -> None:
        self.own = own
        self.disk = disk
        self.node: RaftNode | None = None
        self.state = Registers()
        self.life = 0
        self._limits = limits
        self._habits = habits
        self._chance = chance
        self._world = world
        self._receiving: _Receiving | None = None
        self._snapshot_under_way = False
        self.has_space = True
        """Whether the disk has space for a snapshot."""

    @property
    def name(self) -> str:
        """For traces: node id and number of the directory."""
        return f"{self.own.node_id}/{self.own.directory_id[-1]}"

    def start(self) -> None:
        """Start a process on the contents of the disk."""
        assert self.node is None
        self.life += 1
        self.state = Registers.decode(self.disk.snapshot.body)
        self._receiving = None
        self._snapshot_under_way = False
        self.node = RaftNode(self.own, self._limits, self.disk.stored(), self._chance.randrange)
        self.pump()

    def crash(self) -> None:
        """Lose power."""
        self.node = None
        self.disk.crash(self._chance)

    def call(self, what: Callable[[RaftNode], None]) -> None:
        """Make one call into the core, and execute the instructions that follow."""
        assert self.node is not None
        what(self.node)
        self.pump()

    def pump(self) -> None:
        """Execute instructions until there are none."""
        node = self.node
        assert node is not None
        for _ in range(READIES_MAX):
            ready = node.ready()
            if ready is None:
                break
            self._carry_out(node, ready)
        else:
            raise AssertionError(f"{self.name}: the node returned instructions more than {READIES_MAX} times")
        self._take_snapshot()
        self._world.look(self)
        self._world.pumped(self)

    def _carry_out(self, node: RaftNode, ready: Ready) -> None:
        world = self._world
        for message in ready.messages:
            world.send(self, message)
        if ready.persist is not None:
            self._persist(ready.persist)
        world.look(self)
        for entry in ready.committed:
            self.state.apply(entry)
            world.applied(self, entry)
        if ready.leadership is not None:
            world.leadership_changed(self, ready.leadership)
            if ready.leadership.role is Role.LEADER and node.is_leader:
                node.propose(b"")
        for read in ready.reads:
            world.read_ready(self, read)
        for chunk in ready.chunks:
            self._keep(node, chunk)
        for wanted in ready.snapshots:
            self._send_chunk(wanted)

    # --- the disk ---

    def _persist(self, persist: Persist) -> None:
        life = self.life
        if persist.entries:
            assert self.node is not None
            self._world.wrote(self, persist.entries, self.node.term_at(persist.entries[0].index - 1))

        def ended() -> None:
            node = self.node
            assert node is not None
            assert self.life == life
            node.persisted(persist.sequence)
            for message in persist.messages:
                self._world.send(self, message)
            self.pump()

        self.disk.write(persist, ended)
        self._world.write_begun(self)

    def _take_snapshot(self) -> None:
        """Take a snapshot of the applied state; one at a time."""
        node, state = self.node, self.state
        assert node is not None
        if self._snapshot_under_way or self._receiving is not None or not self.has_space:
            return
        behind = state.index - self.disk.snapshot.meta.index
        if behind < (self._habits.every_entries if node.has_room else 1):
            return
        term = node.term_at(state.index)
        assert term is not None, "the last applied entry must be in memory"
        body = state.encode()
        meta = SnapshotMeta(state.index, term, node.membership_at(state.index), state.digest, len(body))
        self._snapshot_under_way = True
        life = self.life

        def ended() -> None:
            assert self.life == life
            self._snapshot_under_way = False
            if self.disk.snapshot.meta != meta:
                return  # a received snapshot is newer
            self._world.snapshot_stored(self, meta)
            node.snapshot_available(meta)
            self._forget(node, meta.index - self._habits.trailing_entries)
            if not node.has_room:
                self._forget(node, meta.index)
            self.pump()

        self.disk.write(StoredSnapshot(meta, body), ended)
        self._world.write_begun(self)

    def _forget(self, node: RaftNode, index: int) -> None:
        if index > self.disk.before[0]:
            node.compact(index)
            self.disk.forget_before(index)

    # --- transfer of snapshots ---

    def _send_chunk(self, wanted: SendSnapshot) -> None:
        stored = self.disk.snapshot
        offset = wanted.offset if wanted.index == stored.meta.index else 0
        data = stored.body[offset : offset + self._habits.chunk_bytes]
        chunk = SnapshotChunk(self.own, wanted.to, wanted.term, stored.meta, offset, data)
        self._world.send(self, chunk)

    def _keep(self, node: RaftNode, chunk: SnapshotChunk) -> None:
        receiving = self._receiving
        if receiving is None or receiving.meta != chunk.meta:
            if receiving is not None and receiving.stored:
                return  # the previous snapshot is being stored; the leader sends this chunk again
            receiving = self._receiving = _Receiving(chunk.meta)
        if chunk.offset == len(receiving.body):
            receiving.body += chunk.data
        node.keep_chunk(chunk, len(receiving.body))
        if len(receiving.body) == chunk.meta.size_bytes and not receiving.stored:
            self._store(receiving)

    def _store(self, receiving: _Receiving) -> None:
        receiving.stored = True
        meta, body = receiving.meta, bytes(receiving.body)
        state = Registers.decode(body)
        assert (state.index, state.digest) == (meta.index, meta.digest), (
            "the body of a snapshot differs from its metadata"
        )
        life = self.life

        def ended() -> None:
            node = self.node
            assert node is not None
            assert self.life == life
            self._receiving = None
            self._world.snapshot_stored(self, meta)
            if meta.index > self.state.index:
                self.state = state
                self._world.installed(self)
            node.restore(meta)
            self.pump()

        self.disk.write(StoredSnapshot(meta, body), ended)
        self._world.write_begun(self)
