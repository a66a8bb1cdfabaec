"""The proposer: turns decided records into batches, and tells when they are committed.

What lives here: the stamp of time and index, the overlay that later decisions are made against, the bound on what is in flight, and who waits for which
index. Nothing here decides; nothing here reads the image except through the overlay. When leadership ends, all of it is dropped: whoever waits is told that this
controller does not lead, although what it waits for may still be committed by the next leader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from ponor.common.v1 import error_pb2
from ponor.metadata.v1 import records_pb2
from ponor_metadata.image.overlay import Overlay
from ponor_raft.membership import Membership
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Telemetry

from ponor_controller.consensus.members import Member, membership_of, voters_set
from ponor_controller.consensus.ports import Consensus, LogEntry
from ponor_controller.kernel.cluster_clock import ClusterClock
from ponor_controller.settings import ControllerSettings

BATCH_OVERHEAD_BYTES = 64
"""Index, term, time, and the length before each record, generously."""
RECORD_OVERHEAD_BYTES = 5
GROUP_BYTES_MAX = 128 * 1024
"""A batch that gathers operations is proposed when it has this many bytes: followers work while the next one is gathered."""

UNDER_WAY_MAX = 3
"""With so many batches on their way, operations that come wait for a commit and then share a batch: the busier a leader is, the more share one.
One is written, one is applied, one is gathered meanwhile."""

W = TypeVar("W")
Committed: TypeAlias = Callable[[W], None]
Dropped: TypeAlias = Callable[[W, OperationError], None]
_Waiters: TypeAlias = tuple[int, Committed[Any], Dropped[Any], list[Any]]
"""Who waits for an index one behind the other: the index, what to call for each when it is committed, what when leadership ended before, and who waits."""


class Proposer:
    """Proposes while this controller leads. `committed` must hear of every commit, right after the consensus did."""

    def __init__(
        self,
        consensus: Consensus,
        overlay: Overlay,
        cluster_clock: ClusterClock,
        clock: Clock,
        settings: ControllerSettings,
        telemetry: Telemetry,
    ) -> None:
        self._consensus = consensus
        self._overlay = overlay
        self._cluster_clock = cluster_clock
        self._clock = clock
        self._settings = settings
        self._in_flight: deque[tuple[int, int, int]] = deque()
        """(index, bytes, when proposed in ns)."""
        self._in_flight_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._turn = asyncio.Event()
        self._turn.set()
        self._waiting: deque[_Waiters] = deque()
        self._leads = False
        self._open: records_pb2.RecordBatch | None = None
        self._open_bytes = 0
        consensus.on_compaction(self._update_room)
        self._commit_us = telemetry.histogram("ponor_controller_commit_seconds")

    @property
    def view(self) -> Overlay:
        """What validators read: committed rows, and above them what is proposed."""
        return self._overlay

    @property
    def last_index(self) -> int:
        """Index of the newest proposed batch, or of the newest committed one when nothing is in flight."""
        return self._overlay.index

    @property
    def leads(self) -> bool:
        """Between `begin` and `end`."""
        return self._leads

    @property
    def in_flight(self) -> int:
        """Batches proposed and not committed."""
        return len(self._in_flight)

    def now_ms(self) -> int:
        """Cluster time: the stamp of the batch that is being gathered, if one is."""
        return self._cluster_clock.now_ms() if self._open is None else self._open.cluster_time_ms

    @property
    def has_room(self) -> bool:
        """Whether `room` would return at once."""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until something may be proposed."""
        await self._room.wait()

    @property
    def has_turn(self) -> bool:
        """Whether `turn` would return at once."""
        return self._turn.is_set()

    async def turn(self) -> None:
        """Wait until another batch may be gathered."""
        await self._turn.wait()

    @property
    def _accepts(self) -> bool:
        return self._leads and self._consensus.accepts_proposals

    def require_leading(self) -> None:
        """Refuse what only a leader may decide.

        Raises:
            OperationError: NOT_LEADER.
        """
        if not self._accepts:
            raise OperationError(
                error_pb2.ERROR_CODE_NOT_LEADER,
                "this controller does not lead, or is handing over; ask again",
                leader_address=self._consensus.leader_address() or "",
            )

    def propose(self, records: Sequence[records_pb2.Record], *, divisible: bool = False) -> int:
        """Propose records as one batch, or, when they may be divided and one batch cannot hold them, as several.

        Returns:
            The index of the (last) batch.

        Raises:
            OperationError: INVALID_REQUEST when they do not fit into one batch and must, NOT_LEADER when this controller does not lead or is handing over;
                nothing was proposed then. OVERLOADED when the record log has no room for a batch; those before it are proposed.
        """
        bytes_max = self._settings.batch_bytes_max
        batches = divide(records, bytes_max)
        if len(batches) > 1 and not divisible:
            raise OperationError(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"the change needs {_records_bytes(records)} bytes of records, one batch holds {bytes_max}; ask for less at once",
            )
        for batch in batches:
            self._propose(batch)
        return self.last_index

    def gather(self, records: Sequence[records_pb2.Record], *, divisible: bool = False) -> int:
        """Put the records of one operation into a batch that others may share; `seal` proposes it.

        What a batch costs on its way through log, core, followers and subscribers is shared with it. The caller may give the event loop back and go on gathering, and seals
        as soon as it has nothing to add. Whatever else is proposed meanwhile seals it first, and stands behind it.

        Returns and raises: as `propose`.
        """
        encoded = [record.SerializeToString(deterministic=True) for record in records]
        size_bytes = sum(map(len, encoded)) + RECORD_OVERHEAD_BYTES * len(records)
        if size_bytes > self._settings.batch_bytes_max - BATCH_OVERHEAD_BYTES:
            return self.propose(records, divisible=divisible)
        if self._open is not None and self._open_bytes + size_bytes > GROUP_BYTES_MAX:
            self.require_leading()  # a hand-over leaves the batch open, and it must not grow beyond its bound
            self._seal_or_refuse()
        if self._open is None:
            self.require_leading()
            batch = self._next_batch()
            self._overlay.open_batch(batch)
            self._open, self._open_bytes = batch, BATCH_OVERHEAD_BYTES
        self._overlay.extend_batch(records, encoded)
        self._open_bytes += size_bytes
        return self._open.index

    @property
    def gathers(self) -> bool:
        """Whether a batch is being gathered."""
        return self._open is not None

    def seal(self) -> None:
        """Propose what was gathered, if anything was. While leadership is handed over or ends, or the log has no room, it stays: `end` drops it, or a later
        call proposes it.
        """
        batch = self._open
        if batch is not None and self._accepts and self._consensus.room_problem(self._open_bytes) is None:
            assert batch.term == self._consensus.term, "the end of a term drops what it gathered"
            self._open = None
            sealed = self._overlay.close_batch()
            self._consensus.propose(LogEntry(batch.index, batch.term, sealed.encoded))
            self._took(batch.index, len(sealed.encoded))

    def settle(self) -> None:
        """See `Consensus.settle`."""
        self._consensus.settle()

    def propose_members(self, members: Sequence[Member]) -> int:
        """Propose that these be the members of the quorum.

        Returns:
            The index of the batch; the membership changes as soon as it is in the log.

        Raises:
            OperationError: NOT_LEADER.
            MembershipChangeError: the core does not allow the change now.
        """
        return self._propose([voters_set(members)], membership_of(members))

    def when_committed(self, index: int, committed: Committed[W], dropped: Dropped[W], waiter: W) -> None:
        """Call back once everything up to `index` is committed; at once if it is. To be asked with `last_index` or below, by a controller that leads.

        Args:
            index: what to wait for.
            committed: called with `waiter` once it is committed.
            dropped: called with `waiter` and NOT_LEADER when leadership ended before it was known to be.
            waiter: who waits. Thousands may; a closure for each would cost as much as its answer.
        """
        if index <= self._overlay.image.index:
            committed(waiter)
            return
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last[0] == index and last[1] == committed:
            last[3].append(waiter)
        elif last is None or last[0] <= index:
            self._waiting.append((index, committed, dropped, [waiter]))
        else:  # a replay of an operation that is still in flight: it has its own place in the order
            position = next(at for at, other in enumerate(self._waiting) if other[0] > index)
            self._waiting.insert(position, (index, committed, dropped, [waiter]))

    async def committed_up_to(self, index: int) -> None:
        """Wait for a commit.

        Raises:
            OperationError: NOT_LEADER, see `when_committed`.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_committed(index, _wake, _drop, done)
        await done

    def begin(self) -> None:
        """This controller leads: the image shows everything that is in the log."""
        assert not self._leads
        assert self._overlay.proposed_batches == 0, "nothing of an earlier term is left"
        self._leads = True
        self._update_room()

    def end(self, error: OperationError) -> None:
        """It does not lead any more. Whoever waits hears `error`. Idempotent."""
        self._leads = False
        self._open = None
        self._overlay.drop()
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._update_room()
        waiting, self._waiting = self._waiting, deque()
        for _, _, dropped, waiters in waiting:
            for waiter in waiters:
                dropped(waiter, error)

    def committed(self, entries: Sequence[LogEntry]) -> None:
        """Everything up to the last entry is committed: fold it into the image and wake who waits for it."""
        index = entries[-1].index
        if not self._leads:
            for entry in entries:
                self._overlay.image.replay(entry.data)
            return
        self._overlay.commit(index)
        now_ns = self._clock.monotonic_ns()
        while self._in_flight and self._in_flight[0][0] <= index:
            _, size_bytes, proposed_ns = self._in_flight.popleft()
            self._in_flight_bytes -= size_bytes
            self._commit_us.record((now_ns - proposed_ns) // 1000)
        self._update_room()
        waiting = self._waiting
        while waiting and waiting[0][0] <= index:
            _, committed, _, waiters = waiting.popleft()
            for waiter in waiters:
                committed(waiter)

    def _seal_or_refuse(self) -> None:
        self.seal()
        if self._open is not None:
            self._require_room(self._open_bytes)

    def _require_room(self, size_bytes: int) -> None:
        """Refuse what the log has no room for, before the overlay shows it.

        Raises:
            OperationError: OVERLOADED; the caller asks again later.
        """
        problem = self._consensus.room_problem(size_bytes)
        if problem is not None:
            raise OperationError(error_pb2.ERROR_CODE_OVERLOADED, f"the record log has no room: {problem}")

    def _propose(self, records: Sequence[records_pb2.Record], membership: Membership | None = None) -> int:
        self.require_leading()
        self._seal_or_refuse()
        self._require_room(_records_bytes(records) + RECORD_OVERHEAD_BYTES * len(records))
        batch = self._next_batch()
        batch.records.extend(records)
        if membership is not None:  # the only one that the core may refuse: it has to see it first
            data = batch.SerializeToString(deterministic=True)
            self._consensus.propose(LogEntry(batch.index, batch.term, data, membership, batch))
            taken = self._overlay.propose(batch)
            assert taken == data, "a batch has one encoding"
        else:
            data = self._overlay.propose(batch)
            self._consensus.propose(LogEntry(batch.index, batch.term, data, decoded=batch))
        self._took(batch.index, len(data))
        return batch.index

    def _next_batch(self) -> records_pb2.RecordBatch:
        return records_pb2.RecordBatch(
            index=self.last_index + 1,
            term=self._consensus.term,
            cluster_time_ms=max(self.now_ms(), self._overlay.cluster_time_ms),
        )

    def _took(self, index: int, size_bytes: int) -> None:
        self._in_flight.append((index, size_bytes, self._clock.monotonic_ns()))
        self._in_flight_bytes += size_bytes
        self._update_room()

    def _update_room(self) -> None:
        settings = self._settings
        if (
            len(self._in_flight) < settings.proposals_max
            and self._in_flight_bytes < settings.proposals_bytes_max
            and self._consensus.has_room
        ):
            self._room.set()
        else:
            self._room.clear()
        if self._room.is_set() and len(self._in_flight) < UNDER_WAY_MAX:
            self._turn.set()
        else:
            self._turn.clear()


def divide(records: Sequence[records_pb2.Record], bytes_max: int) -> list[list[records_pb2.Record]]:
    """Cut records into runs that each fit into a batch of `bytes_max`; a larger single record is a run of its own."""
    runs: list[list[records_pb2.Record]] = [[]]
    room = bytes_max - BATCH_OVERHEAD_BYTES
    for record in records:
        size_bytes = record.ByteSize() + RECORD_OVERHEAD_BYTES
        if runs[-1] and size_bytes > room:
            runs.append([])
            room = bytes_max - BATCH_OVERHEAD_BYTES
        runs[-1].append(record)
        room -= size_bytes
    return runs


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _drop(done: asyncio.Future[None], error: OperationError) -> None:
    if not done.done():
        done.set_exception(error)


def _records_bytes(records: Sequence[records_pb2.Record]) -> int:
    return sum([record.ByteSize() for record in records])
