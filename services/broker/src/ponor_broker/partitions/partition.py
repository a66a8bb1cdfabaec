"""A partition that this broker leads: appends, reads, and what must survive a move.

What lives here: the order of things for one partition. A batch is checked against the producer's state and appended in one step, without
a pause in between; it becomes readable, and is acknowledged, when it is durable. Replication factor is 1 by design (durability is the
log's and the object store's), so the high watermark is the confirmed end and there is no follower.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_kafka.record_batch import NO_PRODUCER_ID, BatchView
from ponor_runtime.clock import Clock
from s3stream.errors import AppendBackpressureError, StreamClosedError
from s3stream.records import StreamRecord

from ponor_broker.partitions.durable_state import DurableState, producer_batch
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.leader_epochs import LeaderEpochs
from ponor_broker.partitions.meta_stream import MetaStream
from ponor_broker.partitions.partition_log import PartitionLog
from ponor_broker.partitions.producer_state import ProducerBatch, ProducerStates
from ponor_broker.partitions.topic_config import TopicConfig

ANY_EPOCH: Final = -1
RECOVER_BYTES: Final = 1 << 20

Watcher: TypeAlias = Callable[["Partition", int], None]
"""Called with the bytes by which the readable end grew; 0 when the partition closed or failed."""


class AppendResult(NamedTuple):
    """What a durable append tells."""

    base_offset: int


class PendingAppend(NamedTuple):
    """An append that was taken: its offset, and the future of its durability (None: durable already)."""

    base_offset: int
    durable: asyncio.Future[None] | None


class _InFlight(NamedTuple):
    """An append that is not durable yet."""

    base_offset: int
    end_offset: int
    max_timestamp: int
    size_bytes: int
    durable: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class PartitionId:
    """Which partition: the topic's id (16 bytes) and name, and the number."""

    topic_id: bytes
    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


class Partition:
    """See the module's docstring. Built by `partition_opener`, after `recover` it serves."""

    def __init__(
        self,
        identity: PartitionId,
        leader_epoch: int,
        log: PartitionLog,
        meta: MetaStream,
        state: DurableState,
        *,
        config: TopicConfig,
        clock: Clock,
    ) -> None:
        self.identity = identity
        self.leader_epoch = leader_epoch
        self.log = log
        self.config = config
        self._meta = meta
        self._state = state
        self._clock = clock
        self._settled_offset = log.confirmed_offset
        """Producer state, timestamps and watchers have seen the appends below; the log itself may be a moment ahead."""
        self._in_flight: deque[_InFlight] = deque()
        self._watchers: dict[Watcher, None] = {}
        self._closed = False
        self._failure: BaseException | None = None

    @property
    def producers(self) -> ProducerStates:
        """Idempotent producers of the partition."""
        return self._state.producers

    @property
    def epochs(self) -> LeaderEpochs:
        """Where leader epochs began."""
        return self._state.epochs

    @property
    def index(self) -> int:
        """Number within the topic."""
        return self.identity.index

    @property
    def log_start_offset(self) -> int:
        """First Kafka offset that can be read."""
        return self._state.checkpoint.start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next batch gets."""
        return self.log.end_offset

    @property
    def high_watermark(self) -> int:
        """Where reads end: what is durable. Also the last stable offset, as long as there are no transactions.

        It is the log's own number, so that no answer shows records beyond the high watermark beside them, and none precedes it.
        """
        return self.log.confirmed_offset

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """The largest timestamp of all readable records, and the base offset of its batch; −1 for none."""
        checkpoint = self._state.checkpoint
        return checkpoint.max_timestamp, checkpoint.max_timestamp_offset

    @property
    def is_serving(self) -> bool:
        """Neither closed nor failed."""
        return not self._closed and self._failure is None

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Compare the leader epoch a client believes in (−1: no opinion).

        Raises:
            PartitionError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        if current_leader_epoch in {ANY_EPOCH, self.leader_epoch}:
            return
        if current_leader_epoch < self.leader_epoch:
            code, relation = ErrorCode.FENCED_LEADER_EPOCH, "older"
        else:
            code, relation = ErrorCode.UNKNOWN_LEADER_EPOCH, "newer"
        raise PartitionError(
            code, f"{self.identity}: epoch {current_leader_epoch} is {relation} than {self.leader_epoch}"
        )

    # Appends

    def append(self, batch: BatchView) -> PendingAppend:
        """Take one validated batch; base offset and leader epoch are stamped into it in place.

        A repeated batch of an idempotent producer is not appended: the answer is its first append's, once that is durable.

        Raises:
            PartitionError: the producer's epoch or sequence is refused.
            S3StreamError: the storage did not take it; nothing changed.
        """
        self._check_serving()
        producer: ProducerBatch | None = None
        if batch.producer_id != NO_PRODUCER_ID:
            producer = producer_batch(batch)
            taken = self.producers.find_duplicate(producer)
            if taken is not None:
                return PendingAppend(taken.base_offset, self._durable_at(taken.end_offset))
            self._check_sequence(producer)
        now_ms = self._clock.wall_ms()
        self.log.roll_if_due(batch.size_bytes, now_ms)
        self._state.persist_epochs()
        base_offset = self.log.end_offset
        batch.set_base_offset(base_offset)
        batch.set_leader_epoch(self.leader_epoch)
        end_offset = batch.next_offset
        durable = self.log.append(
            batch.view, count=end_offset - base_offset, max_timestamp=batch.max_timestamp
        )
        if producer is not None:
            self.producers.append(producer, base_offset, end_offset, now_ms)
        self._in_flight.append(
            _InFlight(base_offset, end_offset, batch.max_timestamp, batch.size_bytes, durable)
        )
        durable.add_done_callback(self._settle)
        return PendingAppend(base_offset, durable)

    def append_batch(self, batch: bytearray) -> asyncio.Future[AppendResult]:
        """`append` for the broker's own batches, which are well-formed; resolves when durable, in the order of the calls.

        Raises:
            S3StreamError: the storage did not take it; nothing changed.
        """
        pending = self.append(BatchView(memoryview(batch)))
        result: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()

        def settle(done: asyncio.Future[None]) -> None:
            if result.done():
                return
            if done.cancelled():
                result.cancel()
            elif (error := done.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(AppendResult(pending.base_offset))

        assert pending.durable is not None, "only producers' batches can be repeats"
        pending.durable.add_done_callback(settle)
        return result

    def _check_serving(self) -> None:
        if self._failure is not None:
            raise StreamClosedError(f"{self.identity} failed: {self._failure}") from self._failure
        if self._closed:
            raise StreamClosedError(f"{self.identity} is closed on this broker")

    def _check_sequence(self, producer: ProducerBatch) -> None:
        try:
            self.producers.check(producer)
        except PartitionError as error:
            if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self._in_flight:
                # Clients take this code for an acknowledgement, and the batch may still be on its way to the disk.
                raise PartitionError(
                    ErrorCode.REQUEST_TIMED_OUT, f"{self.identity}: {error}; not durable yet"
                ) from error
            raise

    def _durable_at(self, end_offset: int) -> asyncio.Future[None] | None:
        for append in self._in_flight:
            if append.end_offset >= end_offset:
                return append.durable
        return None

    def _settle(self, _: asyncio.Future[None] | None = None) -> None:
        """Take what is durable from the oldest append on: the order of callbacks is the loop's, that of offsets is ours."""
        while self._in_flight and self._in_flight[0].durable.done():
            append = self._in_flight.popleft()
            durable = append.durable
            failure = asyncio.CancelledError() if durable.cancelled() else durable.exception()
            if failure is not None:
                self.producers.roll_back(append.base_offset)
                self._in_flight.clear()
                self._fail(failure)
                return
            assert append.base_offset >= self._settled_offset, (
                f"{self.identity}: append {append.base_offset} was confirmed out of order"
            )
            self._settled_offset = append.end_offset
            self.producers.confirm(append.end_offset)
            self._state.note_timestamp(append.max_timestamp, append.base_offset)
            self._wake(append.size_bytes)

    def _fail(self, failure: BaseException) -> None:
        """A stream is dead after a failed append: the partition answers NOT_LEADER until it is opened again."""
        if self._failure is None:
            self._failure = failure
            self._wake(0)

    # Reads

    def read_cached(self, offset: int, max_bytes: int) -> list[StreamRecord] | None:
        """Batches from memory, or None where objects are needed; see `PartitionLog.read_cached`.

        Raises:
            PartitionError: OFFSET_OUT_OF_RANGE.
        """
        self._check_serving()
        if offset >= self.high_watermark:
            self.check_offset(offset)
            return []
        self.check_offset(offset)
        return self.log.read_cached(offset, max_bytes)

    async def read(self, offset: int, max_bytes: int) -> list[StreamRecord]:
        """The same, from objects too.

        Raises:
            PartitionError: OFFSET_OUT_OF_RANGE.
            S3StreamError: unreadable or too slow.
        """
        cached = self.read_cached(offset, max_bytes)
        return cached if cached is not None else await self.log.read(offset, max_bytes)

    async def read_batches(self, start_offset: int, max_bytes: int) -> list[memoryview]:
        """Whole batches from the one that contains `start_offset` on, at least one however big; empty at the end."""
        return [memoryview(record.payload) for record in await self.read(start_offset, max_bytes)]

    def check_offset(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self.log.end_offset:
            raise PartitionError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.identity}: offset {offset} is not within {self.log_start_offset}..{self.log.end_offset}",
            )

    def watch(self, watcher: Watcher) -> None:
        """Call back at every advance of the readable end."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Stop calling back."""
        self._watchers.pop(watcher, None)

    def _wake(self, size_bytes: int) -> None:
        if self._watchers:
            for watcher in list(self._watchers):
                watcher(self, size_bytes)

    # What survives

    async def recover(self) -> int:
        """Learn what the Meta stream does not say, and begin this leader's epoch; returns how many batches were read for it.

        Raises:
            S3StreamError: the log cannot be read.
        """
        batches = await self._state.recover(self._settled_offset, self._clock)
        self._state.begin_epoch(self.leader_epoch)
        return batches

    def before_upload(self) -> None:
        """The hook of the Data stream; see `DurableState.before_upload`."""
        if self.is_serving:
            self._state.before_upload(self._settled_offset)

    @property
    def wants_time_stream(self) -> bool:
        """Whether there are timestamps that a Time stream should hold, and none exists."""
        return self._state.wants_time_stream

    async def trim_meta(self) -> bool:
        """Drop Meta entries that a rewrite replaced, once that lies in committed objects."""
        return await self._meta.trim_rewritten()

    @property
    def meta_stream(self) -> MetaStream:
        """The Meta stream."""
        return self._meta

    async def seal(self) -> None:
        """Refuse requests from now on, wait for appends, persist everything. The streams stay open. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._wake(0)
        if self._in_flight:
            await asyncio.wait([append.durable for append in self._in_flight])
            self._settle()  # whether its callbacks have run yet is the loop's affair
        if self._failure is None:
            # Refused (the cache is full): the next open then reads more batch headers, and loses nothing.
            with contextlib.suppress(AppendBackpressureError):
                self._state.persist_epochs()
                self._state.write_checkpoint(self._settled_offset, clean=True)

    async def close(self) -> None:
        """`seal`, then close all streams, the Meta stream last."""
        await self.seal()
        await self.log.close()
        await self._meta.close()

    def abandon(self) -> None:
        """The streams are gone (the topic was deleted): refuse requests and forget the streams, without a word to the controller."""
        self._closed = True
        self._wake(0)
        for stream in (*self.log.streams.values(), self._meta.stream):
            stream.abandon()
