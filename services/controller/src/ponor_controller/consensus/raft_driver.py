"""Drive the Raft core: feed it ticks, messages and completions; persist, send and deliver what it returns.

The driver carries out the core's instructions in the order that the core prescribes. It makes no decisions
and does not interpret records.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from ponor_raft.entry import Entry, SnapshotMeta
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import AppendRequest, Message, SnapshotChunk
from ponor_raft.node import RaftNode
from ponor_raft.ready import Leadership, LostEntries, Persist, Ready, Role, SendSnapshot
from ponor_runtime.late_ticks import LateTicks
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from ponor_controller.consensus.commit_notices import CommitNotices
from ponor_controller.consensus.deliveries import next_delivery
from ponor_controller.consensus.linearizable_reads import LinearizableReads
from ponor_controller.consensus.peers import Peers
from ponor_controller.consensus.ports import CommitListener, LeadershipListener, LogEntry
from ponor_controller.consensus.record_log import RecordLog
from ponor_controller.consensus.window_compaction import WindowCompaction

LOG: Final = logging.getLogger("ponor.controller")
TICK_SECONDS: Final = 0.05
FAST_TICK_SECONDS: Final = 0.01
FAST_TICKS_NS: Final = 3_000_000_000
"""How long a controller ticks faster while it knows no leader."""
ROUNDS_MAX: Final = 64
"""Bound of the rounds of heartbeats that no majority has confirmed; at most one begins per tick. A leader
without a majority steps down before it reaches this bound. Dropping the oldest round only makes the reported
age of the commit index too high."""
SLICE_NS: Final = 10_000_000
"""Time in ns for which committed entries are applied before the driver yields to the event loop."""


class SnapshotTraffic(Protocol):
    """Sends and receives snapshots for the driver."""

    def send(self, request: SendSnapshot) -> None:
        """Send a piece."""
        ...

    def receive(self, chunk: SnapshotChunk) -> None:
        """Store a received piece."""
        ...


class _Write:
    """A `Persist` in progress."""

    __slots__ = ("began_ns", "done", "persist")

    def __init__(self, persist: Persist, began_ns: int) -> None:
        self.persist = persist
        self.began_ns = began_ns
        self.done = False


class RaftDriver:
    """Drives a `RaftNode`; implements `peers.Core`. Register the listeners, then call `start`."""

    def __init__(
        self,
        node: RaftNode,
        log: RecordLog,
        peers: Peers,
        runtime: Runtime,
        tasks: BackgroundTasks,
        *,
        slow_disk_ms: int,
        open_term: Callable[[int, int], bytes],
        appended: Callable[[Sequence[Entry]], None],
    ) -> None:
        """Create a driver that is not started.

        Args:
            node: the Raft core; no other caller has used it.
            log: the recovered log, from which the core's stored state was read.
            peers: the other controllers.
            runtime: time, telemetry, fail-stop.
            tasks: runs the ticks.
            slow_disk_ms: a leader steps down when a write takes longer.
            open_term: encodes the opening entry of (index, term).
            appended: called with entries when they are appended here, before they are committed.
        """
        self._node = node
        self._log = log
        self.compaction = WindowCompaction(node, log)
        self._peers = peers
        self._outgoing = CommitNotices(peers.send)
        self._clock, self._fail_stop, self._tasks = runtime.clock, runtime.fail_stop, tasks
        self._loop = asyncio.get_running_loop()
        self._slow_disk_ns = slow_disk_ms * 1_000_000
        self._late_ticks = _late_ticks(runtime)
        self._open_term = open_term
        self._appended = appended
        self._traffic: SnapshotTraffic | None = None
        self._commit_listeners: list[CommitListener] = []
        self._leadership_listeners: list[LeadershipListener] = []
        self._leading_listeners: list[Callable[[], None]] = []
        self._writes: deque[_Write] = deque()
        self._committed: deque[Entry] = deque()
        self._proposed: deque[LogEntry] = deque()
        self._opening: tuple[int, int, int] | None = None
        """The own opening entry: term, index and time of the proposal."""
        self._linked: Membership | None = None
        self._delivered_index = node.commit_index
        self.heard_commit_index = node.commit_index
        """The highest commit index that a leader reported; the log of this replica may end before it."""
        self._fast_ticks_until_ns = 0
        self._led_ns = self._begin_fast_ticks()
        self._rounds: deque[tuple[int, int]] = deque(maxlen=ROUNDS_MAX)
        """Unconfirmed rounds of this leader's heartbeats: (round, earliest possible start of the round)."""
        self._scheduled = self._delivering = self._closed = False
        self.leadership, self.leading = Leadership(node.role, node.term, node.leader), False
        self.applied_index = node.commit_index
        """All entries up to this index were delivered to the listeners."""
        self.applied_membership = node.membership
        self.reads = LinearizableReads(self._read_index, runtime.clock)
        self._show(runtime)

    @property
    def node(self) -> RaftNode:
        """The Raft core."""
        return self._node

    @property
    def membership(self) -> Membership:
        """The membership in the newest appended entry that has one."""
        return self._node.membership

    @property
    def leaderless_ns(self) -> int:
        """Time since this replica was last known to have the newest commit index, in ns.

        A follower knows the newest commit index when it receives a message of the leader. A leader knows it
        when it begins a round of heartbeats that a majority then confirms.
        """
        self._note_confirmed()
        return self._clock.monotonic_ns() - self._led_ns

    def attach(self, traffic: SnapshotTraffic) -> None:
        """Set the sender and receiver of snapshots. Called once."""
        assert self._traffic is None
        self._traffic = traffic

    def on_commit(self, listener: CommitListener) -> None:
        """See `Consensus.on_commit`."""
        self._commit_listeners.append(listener)

    def on_leadership(self, listener: LeadershipListener) -> None:
        """See `Consensus.on_leadership`."""
        self._leadership_listeners.append(listener)

    def on_leading(self, listener: Callable[[], None]) -> None:
        """See `Consensus.on_leading`."""
        self._leading_listeners.append(listener)

    def start(self) -> None:
        """Start ticking. The first tick is immediate, and a sole voter campaigns in it."""
        self._peers.attach(self)
        if self._log.newest is not None:  # the log on disk may begin long before the newest snapshot
            self.compaction.begin(self._log.newest.index)
        self._tasks.spawn(self._tick(), "raft-ticks")

    def close(self) -> None:
        """Stop. Writes in progress complete without callbacks."""
        self._closed = True
        self.compaction.close()
        self._outgoing.close()
        self._set_not_leading()

    # Input.

    def step(self, message: Message) -> None:
        """Handle a message from a peer."""
        if not self._closed:
            if isinstance(message, AppendRequest):
                self.heard_commit_index = max(self.heard_commit_index, message.commit)
            elif isinstance(message, SnapshotChunk):
                self.heard_commit_index = max(self.heard_commit_index, message.meta.index)
            self._node.step(message)
            if self._node.hears_leader:
                self._led_ns = self._clock.monotonic_ns()
            self.schedule()

    def unreachable(self, peer: ReplicaId) -> None:
        """Messages to a peer were lost."""
        if not self._closed:
            self._node.unreachable(peer)

    def reachable(self) -> None:
        """A stream to a peer is open."""
        if self._node.leader is None:
            self._begin_fast_ticks()

    def peer_restarted(self, peer: ReplicaId) -> None:
        """A peer opened a new stream."""
        if not self._closed:
            self._node.peer_restarted(peer)
            self.schedule()

    def suspect(self, peer: ReplicaId) -> None:
        """A stream to or from a peer broke. This detects the exit of a leader before a timeout."""
        if not self._closed:
            self._node.suspect_leader(peer)
            self.schedule()

    def propose(self, entry: LogEntry) -> None:
        """See `Consensus.propose`."""
        taken = self._node.propose(entry.data, entry.membership)
        assert taken.index == entry.index, (
            f"index {entry.index} was proposed, but the next index of the log is {taken.index}"
        )
        self._proposed.append(entry)
        self.schedule()

    def schedule(self) -> None:
        """Carry out the core's instructions at the end of this turn of the event loop, so that several
        instructions share a write and a frame.
        """
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """See `peers.Core.flush`."""
        if self._scheduled:
            self._advance()

    def snapshot_taken(self, meta: SnapshotMeta) -> None:
        """A snapshot is durable: drop its entries from memory, except those that lagging followers need."""
        if not self._closed:
            self._node.snapshot_available(meta)
            self.compaction.begin(meta.index)

    def keep_chunk(self, chunk: SnapshotChunk, next_offset: int) -> None:
        """A received snapshot is stored up to `next_offset`."""
        if not self._closed:
            self._node.keep_chunk(chunk, next_offset)
            self.schedule()

    def restore(self, meta: SnapshotMeta) -> bool:
        """A received snapshot is durable and verified.

        Returns True if it is newer than the delivered entries. The caller must then replace log and image
        before it yields to the event loop.
        """
        newer = not self._closed and meta.index > self._delivered_index
        if not self._closed:
            self._node.restore(meta)
            self.schedule()
        if newer:
            self._committed.clear()
            self._delivered_index = meta.index
            self.applied_index = meta.index
            self.applied_membership = meta.membership
        return newer

    # The loop.

    async def _tick(self) -> None:
        while True:
            self._note_round()
            self._node.tick()
            self._watch_disk()
            self._advance()
            self._note_confirmed()
            pause_s = self._tick_seconds()
            self._late_ticks.due_in(pause_s)
            await self._clock.sleep(pause_s)
            self._late_ticks.came()

    def _note_round(self) -> None:
        """Record the present time as the beginning of the next round of heartbeats."""
        if not self.leading:  # a new leader may lack committed entries until its opening entry is applied
            return
        following = self._node.newest_round + 1
        if self._rounds and self._rounds[-1][0] == following:
            self._rounds.pop()
        self._rounds.append((following, self._clock.monotonic_ns()))

    def _note_confirmed(self) -> None:
        confirmed = self._node.confirmed_round
        while self._rounds and self._rounds[0][0] <= confirmed:
            self._led_ns = self._rounds.popleft()[1]

    def _tick_seconds(self) -> float:
        """The tick interval, which is shorter for a while when no leader is known.

        It is shorter after a start, after the loss of a leader, and when a peer connects while no leader is
        known. Faster ticks do not disturb a live leader, because its followers grant no pre-vote. A candidate
        keeps the normal interval, because voters write to disk before they answer.
        """
        node = self._node
        is_fast = node.leader is None and node.role is not Role.CANDIDATE
        return (
            FAST_TICK_SECONDS
            if is_fast and self._clock.monotonic_ns() < self._fast_ticks_until_ns
            else TICK_SECONDS
        )

    def _begin_fast_ticks(self) -> int:
        """Tick faster for `FAST_TICKS_NS` from now on; returns the present time."""
        now_ns = self._clock.monotonic_ns()
        self._fast_ticks_until_ns = now_ns + FAST_TICKS_NS
        return now_ns

    def _watch_disk(self) -> None:
        """Step down if a write hangs. Otherwise the followers would continue to follow a leader that commits
        nothing (etcd-io/etcd #7970).
        """
        if not self._writes or not self._node.is_leader or len(self._node.membership.voters) == 1:
            return
        if self._clock.monotonic_ns() - self._writes[0].began_ns > self._slow_disk_ns:
            self._node.step_down("a write to the log takes longer than an election timeout")

    def _advance(self) -> None:
        self._scheduled = False
        self._late_ticks.mark()
        try:
            while not self._closed and (ready := self._node.ready()) is not None:
                self._carry_out(ready)
        except Exception as error:  # noqa: BLE001 -- a core in an unknown state must stop
            self._fail_stop("raft", error)

    def _carry_out(self, ready: Ready) -> None:
        if ready.leadership is not None:
            self._change(ready.leadership)
        # Committed entries are delivered before messages are sent, because callers wait for their answers. If
        # there is a `Persist`, the messages carry new entries and are sent first.
        late_messages = ready.messages if ready.committed and ready.persist is None else ()
        if ready.messages and not late_messages:
            self._outgoing.send(ready.messages)
        if ready.persist is not None:
            self._persist(ready.persist)
        if ready.committed:
            self._committed.extend(ready.committed)
            self._delivered_index = ready.committed[-1].index
            self._deliver_soon()
        if late_messages:
            self._outgoing.send(late_messages)
        if ready.reads:
            self.reads.answered(ready.reads)
        if ready.lost is not None:
            self._warn(ready.lost)
        if self._traffic is not None:
            for chunk in ready.chunks:
                self._traffic.receive(chunk)
            for request in ready.snapshots:
                self._traffic.send(request)
        if self._node.membership is not self._linked:
            self._linked = self._node.membership
            self._peers.keep_links(self._linked.members)

    def _warn(self, lost: LostEntries) -> None:
        LOG.warning(
            "%s has the log up to index %d, and this controller had acknowledged index %d to the leader: the"
            " directory lost acknowledged entries. It is probably an older copy of itself, or "
            "its disk is failing. The leader sends the entries again; until then this controller votes only"
            " for controllers that have them. Check the disk, or replace this controller "
            "with an empty directory (docs/operations/quorum.md)",
            self._log.directory,
            lost.last_index,
            lost.acknowledged_index,
        )

    def _change(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self._rounds.clear()
        if leadership.leader is None:
            self._begin_fast_ticks()
        if not self._node.is_leader or self._opening is None or self._opening[0] != self._node.term:
            self._set_not_leading()
        for listener in self._leadership_listeners:
            listener(leadership)
        if self._node.is_leader and self._opening is None:
            index, term = self._node.last_index + 1, self._node.term
            self._node.propose(self._open_term(index, term))
            self._opening = (term, index, self._clock.monotonic_ns())

    def _set_not_leading(self) -> None:
        self._opening = None
        self.leading = False
        self._proposed.clear()

    def _persist(self, persist: Persist) -> None:
        if persist.entries:
            self._appended(persist.entries)
        write = _Write(persist, self._clock.monotonic_ns())
        self._writes.append(write)
        if persist.hard_state is not None or persist.entries:
            self._log.persist(persist.hard_state, persist.entries, partial(self._written, write))
        else:
            self._loop.call_soon(self._written, write, None)

    def _written(self, write: _Write, error: BaseException | None) -> None:
        if self._closed:
            return
        if error is not None:
            self._fail_stop("the record log", error)
            return
        write.done = True
        while self._writes and self._writes[0].done:
            persist = self._writes.popleft().persist
            if persist.messages:
                self._outgoing.send(persist.messages)
            self._node.persisted(persist.sequence)
        self.schedule()

    # Committed entries.

    def _deliver_soon(self) -> None:
        if not self._delivering:
            self._delivering = True
            self._deliver()

    def _deliver(self) -> None:
        """Deliver committed entries to the listeners for one slice of time."""
        began_ns = self._clock.monotonic_ns()
        try:
            while self._committed and not self._closed:
                self._deliver_entries(next_delivery(self._committed))
                if self._committed and self._clock.monotonic_ns() - began_ns > SLICE_NS:
                    self._loop.call_soon(self._deliver)
                    return
        except Exception as error:  # noqa: BLE001 -- the process must stop if it cannot apply a committed entry
            self._fail_stop(f"applying the committed entries after index {self.applied_index}", error)
        self._delivering = False

    def _deliver_entries(self, entries: list[Entry]) -> None:
        decoded = [self._decode(entry) for entry in entries]
        self.applied_index = entries[-1].index
        for entry in entries:
            if entry.membership is not None:
                self.applied_membership = entry.membership
        for listener in self._commit_listeners:
            listener(decoded)
        if self._opening is not None and not self.leading and self.applied_index >= self._opening[1]:
            self.leading = True
            self._led_ns = self._opening[2]  # a majority had the entry, so no later term had a leader
            for begin in self._leading_listeners:
                begin()

    def _decode(self, entry: Entry) -> LogEntry:
        proposed = self._proposed
        while proposed and proposed[0].index < entry.index:
            proposed.popleft()
        if proposed and proposed[0].data is entry.data:
            return proposed.popleft()
        return LogEntry(entry.index, entry.term, entry.data, entry.membership)

    def _read_index(self, context: int) -> None:
        self._node.read_index(context)
        self.schedule()

    def _show(self, runtime: Runtime) -> None:
        telemetry = runtime.telemetry
        telemetry.gauge("ponor_controller_raft_term", lambda: self._node.term)
        telemetry.gauge("ponor_controller_raft_leading", lambda: int(self.leading))
        telemetry.gauge("ponor_controller_raft_window_full", lambda: int(not self._node.has_room))
        telemetry.gauge("ponor_controller_raft_last_index", lambda: self._node.last_index)
        telemetry.gauge("ponor_controller_raft_unsynced_writes", lambda: len(self._writes))


def _late_ticks(runtime: Runtime) -> LateTicks:
    return LateTicks(
        runtime.clock,
        runtime.process,
        runtime.telemetry,
        late_us="ponor_controller_tick_late_seconds",
        cause_us="ponor_controller_tick_late_cause_seconds",
    )
