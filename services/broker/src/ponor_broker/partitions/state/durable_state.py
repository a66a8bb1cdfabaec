"""State of one partition that survives a change of leader: checkpoint, producers, leader epochs.

Writes the state to the Meta stream, and recovers it from there and from batch headers. The written state is
the state at the confirmed end, because appends in flight may still fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from ponor_kafka.control_records import ControlType, read_end_marker
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.record_batch import NO_PRODUCER_ID, BatchView
from ponor_partition import meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaKey, MetaValues
from ponor_partition.segment import TIME, Content
from ponor_partition.txn_entry import TxnEntry
from ponor_runtime.clock import Clock
from ponor_runtime.turns import Steps
from s3stream.errors import S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.partitions.log.meta_stream import MetaStream
from ponor_broker.partitions.log.partition_log import PartitionLog
from ponor_broker.partitions.log.stream_port import observe
from ponor_broker.partitions.state.checkpoint import NO_TRANSACTIONS, PartitionCheckpoint
from ponor_broker.partitions.state.leader_epochs import LeaderEpochs
from ponor_broker.partitions.state.producer_entry import ROW_BYTES_MAX, ProducerBatch
from ponor_broker.partitions.state.producer_state import ProducerStates
from ponor_broker.partitions.transactions.aborted_index import AbortedIndex
from ponor_broker.partitions.transactions.open_transactions import NO_OFFSET


class LogStart:
    """The log start of one partition: raised by retention and DeleteRecords, never lowered. `offset` is the
    visible log start; `on_shown` is called when it has moved.

    A new start becomes visible when it is durable in the Meta stream, even if its caller was cancelled. So no
    crash reverts a visible start, and no cancelled request hides a start that the next open will find.
    Maintenance trims segments and streams later.
    """

    def __init__(self, state: DurableState, on_shown: Callable[[], None]) -> None:
        self._state = state
        self._on_shown = on_shown
        self.offset = state.checkpoint.start_offset
        self._durable: asyncio.Future[None] | None = None

    async def advance(self, offset: int, confirmed_offset: int) -> None:
        """Raise the log start to at least `offset`; return when that is durable. A cancelled call
        reverts nothing.

        Raises:
            S3StreamError: the storage refused the change.
        """
        if offset > self._state.checkpoint.start_offset:
            self._durable = self._state.advance_start(offset, confirmed_offset)
            self._durable.add_done_callback(partial(self._show, offset))
        if offset > self.offset:
            assert self._durable is not None, "the log start was written, but no write is in flight"
            durable = self._durable
            await asyncio.shield(durable)
            self._show(offset, durable)

    def _show(self, offset: int, durable: asyncio.Future[None]) -> None:
        if not durable.cancelled() and durable.exception() is None and offset > self.offset:
            self.offset = offset
            self._on_shown()


RECOVER_BYTES: Final = 1 << 20
BATCHES_PER_TURN: Final = 256
"""Batch headers that a recovery reads per event-loop turn."""


class DurableState:
    """The state of one partition, its writes and its recovery."""

    def __init__(self, meta: MetaStream, log: PartitionLog, *, producers_max: int) -> None:
        self.checkpoint = PartitionCheckpoint()
        # The snapshot of all producers must fit into one record of the write-ahead log.
        producers_max = min(producers_max, meta.rows_bytes_max // ROW_BYTES_MAX)
        self.producers = ProducerStates(producers_max=producers_max)
        self.epochs = LeaderEpochs()
        self.aborted = AbortedIndex(log)
        self._meta = meta
        self._log = log
        self.epochs_are_dirty = False
        """Whether `persist_epochs` has something to write."""
        self._noted_timestamp = self.checkpoint.max_timestamp
        self._snapshot_changes = 0
        self._producers_due_whole = False
        """Whether the next write must contain all producers, because a write was refused and later changes do
        not repeat its content."""

    def restoring(self, values: MetaValues) -> Steps[None]:
        """Restore from the Meta stream's values, in steps.

        Raises:
            PartitionCorruptError: a value is damaged.
        """
        states: tuple[PartitionCheckpoint | LeaderEpochs, ...] = (self.checkpoint, self.epochs)
        for state in states:
            value = values.get(state.key)
            if value is not None and value.whole is not None:
                state.restore(value.whole)
        producers = values.get(self.producers.key)
        if producers is not None:
            yield from self.producers.restoring(producers)
        self._noted_timestamp = self.checkpoint.max_timestamp
        self._snapshot_changes = self.producers.changes
        self.epochs.forget_before(self.checkpoint.start_offset)

    def begin_epoch(self, leader_epoch: int) -> None:
        """Start a leader's epoch at the log's end. `persist_epochs` writes it before the epoch's first
        batch.
        """
        if self.epochs.assign(leader_epoch, self._log.end_offset):
            self.epochs_are_dirty = True

    def persist_epochs(self) -> None:
        """Write the leader epochs if they changed; called before each append.

        Raises:
            S3StreamError: the Meta stream refused the write.
        """
        if self.epochs_are_dirty:
            observe(self._meta.put(meta_entry.LEADER_EPOCHS, self.epochs.snapshot()))
            self.epochs_are_dirty = False

    def note_timestamp(self, max_timestamp: int, batch_offset: int) -> None:
        """Note the largest timestamp of a readable batch."""
        if max_timestamp > self.checkpoint.max_timestamp:
            self.checkpoint.max_timestamp = max_timestamp
            self.checkpoint.max_timestamp_offset = batch_offset

    @property
    def needs_time_stream(self) -> bool:
        """Whether a Time stream is needed and does not exist yet."""
        return self._noted_timestamp < self.checkpoint.max_timestamp and TIME not in self._log.streams

    # Recovery

    async def recover(self, end_offset: int, clock: Clock) -> int:
        """Read the batch headers between checkpoint and end; return the number of batches.

        Raises:
            S3StreamError: the log cannot be read.
            PartitionCorruptError: the Data stream contains a record that is not a record batch.
        """
        checkpoint = self.checkpoint
        offset = checkpoint.recover_offset
        # A checkpoint that ends at or below the base of the active segment describes an earlier segment.
        if checkpoint.active_end_offset > self._log.log_meta.active.base_offset:
            self._log.set_active_content(
                Content(
                    checkpoint.active_bytes,
                    checkpoint.active_max_timestamp,
                    checkpoint.active_max_timestamp_offset,
                )
            )
        # The restored rows of the producers and the entries of the Txn stream include all markers below this
        # offset.
        replay_from = max(offset, self.producers.restored_offset)
        aborted: list[TxnEntry] = []
        now_ms = clock.wall_ms()
        self._log.fold_meta()  # for logs of an older release
        batches = 0
        while offset < end_offset:
            for record in await self._log.read(offset, RECOVER_BYTES):
                base_offset = self._log.kafka_offset(offset, record)
                entry = self._replay(_stored_batch(record), base_offset, record, now_ms)
                if entry is not None:
                    aborted.append(entry)
                offset = base_offset + record.count
                batches += 1
                if batches % BATCHES_PER_TURN == 0:
                    await clock.sleep(0)
        await self.aborted.recover(replay_from, aborted)
        return batches

    def _replay(
        self, batch: BatchView, base_offset: int, record: StreamRecord, now_ms: int
    ) -> TxnEntry | None:
        """Process a stored batch; if it aborts a transaction, return the index entry."""
        if base_offset >= max(self._log.log_meta.active.base_offset, self.checkpoint.active_end_offset):
            self._log.note_content(len(record.payload), batch.max_timestamp, base_offset)
        self.note_timestamp(batch.max_timestamp, base_offset)
        if batch.is_control:
            return self._replay_marker(batch, base_offset, now_ms)
        is_transactional = batch.is_transactional
        if batch.producer_id != NO_PRODUCER_ID and (batch.base_sequence >= 0 or is_transactional):
            end_offset = base_offset + record.count
            producer = producer_batch(batch)
            self.producers.replay(
                producer, base_offset, end_offset, now_ms, is_transactional=is_transactional
            )
        return None

    def _replay_marker(self, batch: BatchView, offset: int, now_ms: int) -> TxnEntry | None:
        try:
            marker = read_end_marker(batch)
        except KafkaWireError as error:
            raise PartitionCorruptError(f"control batch at offset {offset}: {error}") from error
        if marker is None:
            return None
        producer_id = batch.producer_id
        first_offset = self.producers.replay_marker(producer_id, batch.producer_epoch, marker, offset, now_ms)
        if first_offset == NO_OFFSET or marker.kind is ControlType.COMMIT:
            return None
        return TxnEntry(producer_id, first_offset, offset, self.producers.transactions.stable_after(offset))

    # Writes

    def before_upload(self, confirmed_offset: int) -> bool:
        """Append a checkpoint for the data so far, so that it is uploaded in the same object; called just
        before a block is sealed.

        If the storage refuses the checkpoint, the next upload retries; a recovery then only reads more
        headers.

        Returns:
            True if there are many producers and this call only encoded some of them, without an append: call
                again in a later turn.
        """
        if self.producers.rest():
            return True
        try:
            self.write_checkpoint(confirmed_offset, clean=False)
            if self._meta.compaction_due:
                self._meta.rewrite(self._snapshots(confirmed_offset))
        except S3StreamError:
            pass
        return False

    def begin_transactions(self, confirmed_offset: int) -> None:
        """Write the first checkpoint with a stable offset, before the first transactional batch. Readers of
        objects treat all records as committed if the checkpoint has no stable offset.

        Raises:
            S3StreamError: the storage refused the checkpoint; the batch must not be appended.
        """
        if self.checkpoint.stable_offset == NO_TRANSACTIONS:
            self.write_checkpoint(confirmed_offset, clean=False, has_transactions=True)

    def write_checkpoint(self, confirmed_offset: int, *, clean: bool, has_transactions: bool = False) -> None:
        """Write the changes since the last checkpoint. With `has_transactions`, this and all later
        checkpoints have a stable offset.

        Raises:
            S3StreamError: the storage refused part of the writes; the state on the stream is valid but older.
        """
        checkpoint = self.checkpoint
        self.aborted.write_all()  # before the producers' rows, which no longer show ended transactions
        if self.producers.changes != self._snapshot_changes:
            self._write_producers(confirmed_offset)
        if checkpoint.max_timestamp > self._noted_timestamp and self._log.note_time(
            checkpoint.max_timestamp, checkpoint.max_timestamp_offset
        ):
            self._noted_timestamp = checkpoint.max_timestamp
        begins = has_transactions and checkpoint.stable_offset == NO_TRANSACTIONS
        if begins or confirmed_offset > checkpoint.recover_offset or clean != checkpoint.clean_shutdown:
            written = replace(
                checkpoint,
                recover_offset=confirmed_offset,
                clean_shutdown=clean,
                active_bytes=self._log.active_bytes,
                active_max_timestamp=self._log.active_max_timestamp,
                active_max_timestamp_offset=self._log.active_max_timestamp_offset,
                active_end_offset=self._log.end_offset,
            )
            if begins or checkpoint.stable_offset != NO_TRANSACTIONS:
                written.stable_offset = self.stable_offset(confirmed_offset, checkpoint.start_offset)
                written.stable_txn_offset = self.aborted.end_offset
            observe(self._meta.put(meta_entry.PARTITION, written.snapshot()))
            self.checkpoint = written

    def stable_offset(self, confirmed_offset: int, start_offset: int) -> int:
        """Return the last stable offset: each transaction with a lower offset has a durable marker. As in
        Kafka, it is not below the log start, even if that moved into an open transaction.
        """
        return min(confirmed_offset, max(self.producers.transactions.first_unstable, start_offset))

    def _write_producers(self, confirmed_offset: int) -> None:
        """Write the changed producers, or all of them if a replay would otherwise apply too many changes.

        Raises:
            S3StreamError: the storage refused the write; the next write is whole.
        """
        key, producers = meta_entry.PRODUCER_SNAPSHOT, self.producers
        is_whole = self._producers_due_whole or self._meta.needs_whole(key)
        self._producers_due_whole = True
        if is_whole:
            observe(self._meta.put(key, producers.snapshot_at(confirmed_offset)))
        else:
            observe(self._meta.change(key, producers.change_at(confirmed_offset)))
        self._producers_due_whole = False
        self._snapshot_changes = producers.changes

    def write_clean(self, confirmed_offset: int, *, whole: bool) -> None:
        """Write a clean checkpoint. With `whole`, rewrite all keys after it, so that the next open reads
        nothing before the rewrite.

        Raises:
            S3StreamError: as `write_checkpoint`.
        """
        self.persist_epochs()
        self.write_checkpoint(confirmed_offset, clean=True)
        if whole:
            self._meta.rewrite(self._snapshots(confirmed_offset))

    def advance_start(self, start_offset: int, confirmed_offset: int) -> asyncio.Future[None]:
        """Raise the log start. The future resolves when the new start is durable.

        Raises:
            S3StreamError: the Meta stream refused the write; nothing changed.
        """
        assert self.checkpoint.start_offset < start_offset <= confirmed_offset
        # raises `recover_offset`, which must not be below the log start
        self.write_checkpoint(confirmed_offset, clean=False)
        written = replace(self.checkpoint, start_offset=start_offset)
        durable = self._meta.put(meta_entry.PARTITION, written.snapshot())
        self.checkpoint = written
        self.epochs.forget_before(start_offset)
        return durable

    def _snapshots(self, confirmed_offset: int) -> dict[MetaKey, bytes]:
        return {
            meta_entry.LOG: self._log.log_meta.snapshot(),
            meta_entry.PARTITION: self.checkpoint.snapshot(),
            meta_entry.LEADER_EPOCHS: self.epochs.snapshot(),
            meta_entry.PRODUCER_SNAPSHOT: self.producers.snapshot_at(confirmed_offset),
        }


def _stored_batch(record: StreamRecord) -> BatchView:
    try:
        return BatchView(memoryview(record.payload))
    except KafkaWireError as error:
        raise PartitionCorruptError(
            f"stream {record.stream_id}, offset {record.base_offset}: {error}"
        ) from error


def producer_of(records: memoryview | None) -> ProducerBatch | None:
    """Return the producer fields of a batch that may be malformed; None if it has no producer."""
    if records is None:
        return None
    try:
        batch = BatchView(records)
    except KafkaWireError:
        return None
    return None if batch.producer_id == NO_PRODUCER_ID else producer_batch(batch)


def producer_batch(batch: BatchView) -> ProducerBatch:
    """Return the header fields that the producer's state machine needs."""
    return ProducerBatch(
        batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_offset_delta + 1
    )
