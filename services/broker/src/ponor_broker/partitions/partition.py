"""A partition that this broker leads.

A batch is checked against the producer's state and appended in one synchronous step. It becomes readable, and
is acknowledged, when it is durable. The replication factor is 1 by design (the write-ahead log and the object
store provide durability), so the high watermark is the confirmed end and there are no followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from ponor_kafka.control_records import build_end_marker
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import INTERNAL_TOPICS
from ponor_kafka.plain_produce import stamped_copy
from ponor_kafka.record_batch import NO_PRODUCER_ID, TRANSACTIONAL_BIT, BatchView, stamp
from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId
from s3stream.errors import S3StreamError
from s3stream.records import TIMESTAMP_MIN, StreamRecord

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.identity import PartitionId
from ponor_broker.partitions.in_flight import InFlightAppends, OnSettled, PlainAppend, settled_future
from ponor_broker.partitions.log.meta_stream import MetaStream
from ponor_broker.partitions.log.partition_log import PartitionLog, RollRules
from ponor_broker.partitions.log.stream_port import PartitionStream
from ponor_broker.partitions.partition_transactions import PartitionTransactions, TransactionMarker
from ponor_broker.partitions.service_state import ServiceState
from ponor_broker.partitions.state.durable_state import DurableState, LogStart, producer_batch
from ponor_broker.partitions.state.producer_entry import ProducerBatch
from ponor_broker.partitions.state.sequence_order import RefusedSequences, SequenceOrder
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_broker.partitions.transactions.verification import Verification
from ponor_broker.partitions.watchers import Watchers

ANY_EPOCH: Final = -1
HIGH_WATERMARK: Final = -1  # as an offset of `delete_records`
COPIED_BYTES_MAX: Final = 2048
"""Batches up to this size are copied out of the request, because the log cache keeps batches for a while. A
view would keep the whole request and three more objects in memory, two of them tracked by the garbage
collector: more than the batch itself."""

Watcher: TypeAlias = Callable[["Partition", int], None]
"""Called with the number of bytes by which the readable end grew; 0 if the log start moved, or the
partition closed or failed."""


class Partition:
    """One open partition. Built by `partition_opener`; it serves after `recover`."""

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
        refused: RefusedSequences,
        attend: Callable[[Partition], None],
    ) -> None:
        """`attend` is called whenever configs, data or the service state change: for maintenance."""
        self.identity = identity
        self.is_internal = identity.topic in INTERNAL_TOPICS
        """Whether the topic is internal: clients may read, but not write."""
        self.leader_epoch = leader_epoch
        self.log = log
        self.config = config
        self.plain_bytes_max = -1 if self.is_internal else config.plain_bytes_max
        """`TopicConfig.plain_bytes_max`; -1 if clients must not write."""
        self.index = identity.index
        self.meta_stream = meta
        self.state = state
        """State that survives a move."""
        self.producers = state.producers
        self.epochs = state.epochs
        self._clock = clock
        self._settled_offset = log.confirmed_offset
        """Producer state, timestamps and watchers reflect all appends below this offset; the log may be
        slightly ahead."""
        self._start = LogStart(state, lambda: self._attend(self))
        self._order = SequenceOrder(identity, state.producers, refused)
        # created by the first append: most partitions are idle
        self._in_flight: InFlightAppends | None = None
        self._drained: asyncio.Future[None] | None = None
        self.bytes_in = 0
        """Bytes produced since the open; incremented by `_take`, read by `load_report`."""
        self.bytes_out = 0
        """Bytes fetched since the open; incremented by Fetch."""
        self.transactions = PartitionTransactions(identity, state)
        self._watchers: Watchers[Partition] = Watchers()
        self._attend = attend
        self.service = ServiceState(identity)
        """Changed by `partition_closing`, and by a failed append."""

    @property
    def log_start_offset(self) -> int:
        """First readable Kafka offset. Visible only after it is durable, so no crash reverts it."""
        return self._start.offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next batch."""
        return self.log.end_offset

    @property
    def high_watermark(self) -> int:
        """End of reads: the durable end. It is read from the log itself, so that an answer never contains
        records beyond the high watermark that it reports.
        """
        return self.log.confirmed_offset

    @property
    def last_stable_offset(self) -> int:
        """End of `read_committed` reads: each transaction with a lower offset has a durable marker."""
        # The visible log start: the checkpoint's start may not be durable yet, and readers still get the
        # records of an open transaction below it.
        return self.state.stable_offset(self.high_watermark, self.log_start_offset)

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """Largest timestamp of all readable records, and the base offset of its batch; −1 for none."""
        checkpoint = self.state.checkpoint
        return checkpoint.max_timestamp, checkpoint.max_timestamp_offset

    @property
    def is_serving(self) -> bool:
        """Whether the partition is readable: neither closed nor failed, and no other broker may lead it."""
        return not self.service.refuses_reads

    @property
    def is_writable(self) -> bool:
        """Whether the partition is readable and accepts appends."""
        return not self.service.refuses_appends

    def apply_config(self, config: TopicConfig) -> None:
        """Apply changed topic configs from now on."""
        self.config = config
        self.log.apply_rules(RollRules(config.segment_bytes, config.roll_ms))
        self.service_changed()

    def service_changed(self, *, wake: bool = False) -> None:
        """Notify maintenance, and with `wake` also waiting readers, of changed configs or `service`."""
        has_plain = self.is_writable and not self.is_internal
        self.plain_bytes_max = self.config.plain_bytes_max if has_plain else -1
        self._attend(self)
        if wake:
            self._watchers.wake(self)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Compare a client's leader epoch with this partition's (−1: not checked).

        Raises:
            PartitionError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        known = self.leader_epoch
        if current_leader_epoch in {ANY_EPOCH, known}:
            return
        is_older = current_leader_epoch < known
        raise PartitionError(
            ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.identity}: leader epoch {current_leader_epoch} of the request is"
            f" {'older' if is_older else 'newer'} than the partition's {known}",
        )

    # Appends

    def append(
        self,
        batch: BatchView,
        now_ms: int,
        on_settled: OnSettled,
        *,
        min_timestamp: int = TIMESTAMP_MIN,
        verification: Verification | None = None,
    ) -> int:
        """Append one validated batch and return its base offset; write base offset and leader epoch into the
        batch in place. No record has a timestamp below `min_timestamp`.

        A repeated batch of an idempotent producer is not appended: offset and outcome are those of its first
        append. If the first append is durable already, `on_settled` is called within this call. A
        transaction's first batch needs a proof (`PartitionTransactions.begin_verification`).

        Raises:
            PartitionInTransitError: the partition moves; the batch may be retried soon.
            PartitionError: the producer's epoch, sequence or transaction is refused.
            S3StreamError: the storage refused the append; nothing changed.
        """
        if self.service.refuses_appends:
            self.service.check_appends()
        producer, is_transactional = None, bool(batch.attributes & TRANSACTIONAL_BIT)
        if batch.producer_id != NO_PRODUCER_ID:
            producer = producer_batch(batch)
            if is_transactional or not self.producers.is_next(producer):
                taken = self.producers.find_duplicate(producer)
                if taken is not None:
                    self._report_first(taken.end_offset, on_settled)
                    return taken.base_offset
                if is_transactional:
                    self.transactions.check(producer, verification)
                self._order.check(
                    producer, has_in_flight=self.has_in_flight, is_transactional=is_transactional
                )
        payload = batch.view
        size_bytes = len(payload)
        try:
            if is_transactional and producer is not None:
                self.transactions.make_room(producer, self._settled_offset)
            self.log.roll_if_due(size_bytes, now_ms)
            base_offset = self.log.end_offset
            batch.stamp(base_offset, self.leader_epoch)
            self._take(
                payload if size_bytes > COPIED_BYTES_MAX else bytes(payload),
                base_offset,
                batch.last_offset_delta + 1,
                batch.max_timestamp,
                min_timestamp,
                None if is_transactional else producer,
                now_ms,
                on_settled,
            )
        except S3StreamError:
            self._order.refuse(producer)
            raise
        if is_transactional and producer is not None:
            self._order.append_transactional(producer, base_offset, batch.next_offset, now_ms)
        return base_offset

    def append_plain(self, frame: bytearray, plain: PlainAppend, now_ms: int) -> int | None:
        """As `append`, for a batch within a request frame.

        Return None, without any effect, if the batch is not its producer's next one: the caller then uses
        `append`.
        """
        if self.service.refuses_appends:
            self.service.check_appends()
        producer, size_bytes = plain.producer, plain.size_bytes
        if producer is not None and not self.producers.is_next(producer):
            return None
        log = self.log
        try:
            log.roll_if_due(size_bytes, now_ms)
            base_offset = log.end_offset
            payload: memoryview | bytes
            if size_bytes <= COPIED_BYTES_MAX:
                payload = stamped_copy(frame, plain.position, size_bytes, base_offset, self.leader_epoch)
            else:
                payload = memoryview(frame)[plain.position : plain.position + size_bytes]
                stamp(payload, base_offset, self.leader_epoch)
            self._take(
                payload,
                base_offset,
                plain.count,
                plain.max_timestamp,
                plain.min_timestamp,
                producer,
                now_ms,
                plain.settled,
            )
        except S3StreamError:
            self._order.refuse(producer)
            raise
        return base_offset

    def _take(
        self,
        payload: memoryview | bytes,
        base_offset: int,
        count: int,
        max_timestamp: int,
        min_timestamp: int,
        producer: ProducerBatch | None,
        now_ms: int,
        on_settled: OnSettled,
    ) -> None:
        """Append a checked and stamped batch, and note its callback."""
        state, end_offset = self.state, base_offset + count
        if state.epochs_are_dirty:
            state.persist_epochs()
        self.log.append(payload, base_offset, count, max_timestamp, min_timestamp, self._settle)
        if producer is not None:
            self._order.append(producer, base_offset, end_offset, now_ms)
        if self._in_flight is None:
            self._in_flight = InFlightAppends()
        size_bytes = len(payload)
        self.bytes_in += size_bytes
        self._in_flight.append((base_offset, end_offset, max_timestamp, size_bytes, on_settled))

    def append_batch(self, batch: bytearray, proof: Verification | None = None) -> asyncio.Future[None]:
        """As `append`, for well-formed batches of the broker itself. The futures resolve in call order, when
        their batches are durable.

        Raises:
            PartitionError: as `append`.
            S3StreamError: the storage refused the append; nothing changed.
        """
        self.service.check_changes()
        result, settled = settled_future()
        self.append(BatchView(memoryview(batch)), self._clock.wall_ms(), settled, verification=proof)
        return result

    def append_marker(self, marker: TransactionMarker, on_settled: OnSettled) -> None:
        """Append the marker that ends a transaction; as in Kafka, even if no transaction is open.
        `PartitionTransactions.needs_stream` must be false.

        Raises:
            PartitionError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or the partition moves.
            S3StreamError: the storage refused the append; nothing changed.
        """
        self.service.check_appends()
        self.transactions.check_marker(marker)
        now_ms = self._clock.wall_ms()
        content = build_end_marker(marker.producer_id, marker.producer_epoch, marker.end, now_ms)
        batch = BatchView(memoryview(content))
        if self.config.is_log_append_time:
            batch.set_log_append_time(now_ms)
        outcome = None
        if self.transactions.has_listener:
            # The listener gets an outcome of its own, which no cancelled request can change.
            outcome, on_settled = settled_future(then=on_settled)
        self.log.roll_if_due(len(content), now_ms)
        offset = self.log.end_offset
        batch.stamp(offset, self.leader_epoch)
        self._take(bytes(content), offset, 1, now_ms, now_ms, None, now_ms, on_settled)
        self.transactions.ended(marker, offset, now_ms, outcome)

    def _report_first(self, end_offset: int, on_settled: OnSettled) -> None:
        """Report the outcome of the first append of a repeated batch, now or when it is known."""
        if self._in_flight is None or not self._in_flight.add_callback(end_offset, on_settled):
            on_settled(None)

    def _settle(self, failure: BaseException | None) -> None:
        """Complete the oldest append; the stream reports appends in order."""
        in_flight = self._in_flight
        assert in_flight is not None, "an append completed while none was in flight"
        base_offset, end_offset, max_timestamp, size_bytes, on_settled = in_flight.popleft()
        if failure is None and self.service.failure is None:
            assert base_offset >= self._settled_offset, (
                f"{self.identity}: append {base_offset} was confirmed out of order"
            )
            self._settled_offset = end_offset
            state = self.state
            if state.producers.has_unconfirmed:
                state.producers.confirm(end_offset)
            if max_timestamp > state.checkpoint.max_timestamp:
                state.note_timestamp(max_timestamp, base_offset)
            watchers = self._watchers
            if watchers.of_all or watchers.of_stable:
                first_unstable = state.producers.transactions.first_unstable
                watchers.appended(self, base_offset, end_offset, size_bytes, first_unstable)
        else:
            failure = failure or self.service.failure
            assert failure is not None
            self.producers.roll_back(base_offset)
            self._fail(failure)
        on_settled(failure)
        if in_flight.repeats:
            in_flight.report_repeats(end_offset, failure)
        if self._drained is not None and not in_flight and not self._drained.done():
            self._drained.set_result(None)

    def _fail(self, failure: BaseException) -> None:
        """Refuse all requests with NOT_LEADER_OR_FOLLOWER until the partition is opened again, because a
        failed append makes the stream unusable.
        """
        if self.service.failure is None:
            self.service.fail(failure)
            self.service_changed(wake=True)

    # Reads

    async def read(self, offset: int, max_bytes: int) -> list[StreamRecord]:
        """Return batches from memory or objects.

        Raises:
            PartitionError: OFFSET_OUT_OF_RANGE.
            S3StreamError: unreadable or too slow.
        """
        if self.service.refuses_reads:
            self.service.check_reads()
        if self.log_start_offset <= offset < self.log.confirmed_offset:
            return await self.log.read(offset, max_bytes)
        self.check_offset(offset)
        return []

    async def read_batches(self, start_offset: int, max_bytes: int) -> list[memoryview]:
        """Return whole batches, the first of which contains `start_offset`: at least one, even if it exceeds
        `max_bytes`; none at the end of the log.
        """
        return [memoryview(record.payload) for record in await self.read(start_offset, max_bytes)]

    def check_offset(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self.log.end_offset:
            raise PartitionError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.identity}: offset {offset} is not within"
                f" {self.log_start_offset}..{self.log.end_offset}",
            )

    def watch(self, watcher: Watcher, *, committed: bool = False) -> None:
        """Call back when the high watermark, or with `committed` the last stable offset, advances."""
        self._watchers.add(watcher, self.last_stable_offset if committed else None)

    def unwatch(self, watcher: Watcher) -> None:
        """Stop calling back."""
        self._watchers.remove(watcher)

    # The start of the log

    async def delete_records(self, offset: int) -> int:
        """Raise the log start to `offset` (−1: the high watermark), for a client; return the new
        start when it is durable.

        Raises:
            PartitionError: OFFSET_OUT_OF_RANGE; POLICY_VIOLATION for a topic that is only compacted.
            S3StreamError: the storage refused the change.
        """
        if not self.config.deletes_old:
            raise PartitionError(
                ErrorCode.POLICY_VIOLATION, f"{self.identity}: its cleanup.policy does not contain delete"
            )
        end = self.high_watermark
        wanted = end if offset == HIGH_WATERMARK else offset
        if not 0 <= wanted <= end:
            raise PartitionError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.identity}: offset {offset} is not within 0..{end}"
            )
        await self.advance_log_start(wanted)
        return self.log_start_offset

    async def advance_log_start(self, offset: int) -> None:
        """Raise the log start to `offset`; return when that is durable. Segments and streams are
        trimmed later (`PartitionLog.trim`).

        Raises:
            S3StreamError: the storage refused the change.
        """
        self.service.check_changes()
        assert offset <= self._settled_offset, f"{self.identity}: offset {offset} is not readable yet"
        await self._start.advance(offset, self._settled_offset)

    # State that survives a move

    @property
    def recovers_from(self) -> tuple[StreamId, int] | None:
        """Stream and offset at which `recover` starts to read; None if the checkpoint is at the log's end."""
        offset = self.state.checkpoint.recover_offset
        return None if offset >= self._settled_offset else self.log.place_of(offset)

    async def recover(self) -> int:
        """Read the batch headers after the checkpoint, and begin this leader's epoch; return the
        number of batches read.

        Raises:
            S3StreamError: the log cannot be read.
        """
        batches = await self.state.recover(self._settled_offset, self._clock)
        self.state.begin_epoch(self.leader_epoch)
        return batches

    def before_upload(self) -> bool:
        """Upload hook of the Data stream; see `DurableState.before_upload`."""
        if not self.is_writable:
            return False
        if self.state.before_upload(self._settled_offset):
            return True
        self._attend(self)
        return False

    @property
    def has_in_flight(self) -> bool:
        """Whether appends are not durable yet."""
        return bool(self._in_flight)

    async def drained(self) -> None:
        """Return when every append is durable or has failed. Call after `service` refuses appends."""
        if self._in_flight:
            if self._drained is None or self._drained.done():
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def write_clean_checkpoint(self, *, whole: bool = False) -> None:
        """Write everything that the next open needs, so that it reads no batch headers. With `whole`, write
        all of it in one place, so that the next open reads few entries.

        Raises:
            S3StreamError: the storage refused the write; the next open reads more, and loses nothing.
        """
        assert not self._in_flight, f"{self.identity}: appends are in flight"
        self.state.write_clean(self._settled_offset, whole=whole)

    @property
    def streams(self) -> list[PartitionStream]:
        """Every open stream, the Meta stream last."""
        return [*self.log.streams.values(), self.meta_stream.stream]
