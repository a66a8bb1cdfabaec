"""A partition with transactions on memory streams that share one write-ahead log: a crash keeps a prefix of
everything appended, over all streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ponor_broker.partitions.in_flight import settled_future
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_transactions import TransactionMarker
from ponor_broker.partitions.transactions.verification import Verification
from ponor_kafka.control_records import ControlType, read_end_marker
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch
from s3stream.records import StreamRecord

from services.broker.tests.memory_streams import MemoryStream, MemoryStreams
from services.broker.tests.partition_rig import PartitionRig


class LoggedStream(MemoryStream):
    """Notes each append in the shared log."""

    log: list[tuple[int, StreamRecord]]

    def append_nowait(self, *args: object, **options: object) -> None:
        super().append_nowait(*args, **options)  # type: ignore[arg-type]
        self.log.append((self.stream_id, self.waiting[-1][0]))


class LoggedStreams(MemoryStreams):
    """Streams whose records are a prefix of one log after a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[int, StreamRecord]] = []

    async def open_streams(self, wanted: object) -> list[MemoryStream]:
        opened = await super().open_streams(wanted)  # type: ignore[arg-type]
        for stream in opened:
            stream.__class__ = LoggedStream
            assert isinstance(stream, LoggedStream)
            stream.log = self.log
        return opened

    def records_of(self, kind: str) -> list[StreamRecord]:
        """The durable records of the stream with this tag."""
        found = [stream_id for stream_id, tags in self.tags.items() if tags["kind"] == kind]
        return self.streams[found[-1]].records if found else []

    def crash(self, kept: int) -> None:
        """Keep the first appends of the log."""
        del self.log[kept:]
        for stream_id, stream in self.streams.items():
            stream.waiting.clear()
            stream.records = [record for at, record in self.log if at == stream_id]
            stream.records = [record for record in stream.records if record.end_offset > stream.start_offset]
            end = stream.records[-1].end_offset if stream.records else stream.start_offset
            stream.next_offset = stream.confirmed_offset = end


@dataclass
class TransactionRig:
    """One partition; `crash` and `reopen` continue it."""

    streams: LoggedStreams = field(default_factory=LoggedStreams)

    def __post_init__(self) -> None:
        self.rig = PartitionRig(streams=self.streams)
        self.sequences: dict[tuple[int, int], int] = {}

    async def open(self) -> Partition:
        self.partition = await self.rig.open()
        return self.partition

    async def reopen(self) -> Partition:
        """As after a clean move."""
        self.partition.write_clean_checkpoint(whole=True)
        await asyncio.sleep(0)
        self.streams.crash(len(self.streams.log))
        return await self.open()

    def proof(self, producer_id: int, epoch: int = 0) -> Verification | None:
        return self.partition.transactions.begin_verification(producer_id, epoch, generation=1)

    def append(
        self,
        producer_id: int,
        epoch: int = 0,
        *,
        count: int = 1,
        sequence: int | None = None,
        proof: Verification | None = None,
        settled: Callable[[BaseException | None], None] = lambda _: None,
    ) -> int:
        """Append a transactional batch, with a proof if none is given."""
        if sequence is None:
            sequence = self.sequences.get((producer_id, epoch), 0)
        view = transactional(producer_id, epoch, sequence, count)
        offset = self.partition.append(view, 5, settled, verification=proof or self.proof(producer_id, epoch))
        self.sequences[producer_id, epoch] = sequence + count
        return offset

    async def end(
        self,
        producer_id: int,
        epoch: int = 0,
        *,
        commits: bool,
        coordinator_epoch: int = 0,
        generation: int = 1,
    ) -> int:
        """Append a marker as the broker does; return its offset when it is durable."""
        marker = TransactionMarker(producer_id, epoch, coordinator_epoch, commits, generation)
        if self.partition.transactions.needs_stream(marker):
            await self.rig.owned.add_txn_stream(self.partition)
        offset = self.partition.log_end_offset
        durable, settled = settled_future()
        self.partition.append_marker(marker, settled)
        await durable
        return offset

    async def aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        """The aborted transactions of a range, from memory or the stream; both agree."""
        index = self.partition.state.aborted
        found = index.find(start, end)
        read = await index.read(start, end)
        assert found is None or list(found) == list(read)
        return list(read)

    async def committed(self) -> list[int]:
        """The offsets of the records that a consumer with `read_committed` returns."""
        partition = self.partition
        offset, end = partition.log_start_offset, partition.last_stable_offset
        aborted = sorted(await self.aborted(offset, end), key=lambda one: one[1])
        skipped: set[int] = set()
        found: list[int] = []
        while offset < end:
            for record in await partition.read(offset, 1 << 20):
                batch = BatchView(memoryview(record.payload))
                if batch.base_offset >= end:
                    return found
                offset = batch.next_offset
                while aborted and aborted[0][1] <= batch.last_offset:
                    skipped.add(aborted.pop(0)[0])
                if batch.is_control:
                    marker = read_end_marker(batch)
                    if marker is not None and marker.kind is ControlType.ABORT:
                        skipped.discard(batch.producer_id)
                elif not batch.is_transactional or batch.producer_id not in skipped:
                    found += range(batch.base_offset, batch.next_offset)
        return found


def transactional(producer_id: int, epoch: int, sequence: int, count: int = 1) -> BatchView:
    """A producer's transactional batch."""
    records = [(5, b"key", b"%d-%d" % (producer_id, at)) for at in range(count)]
    return BatchView(
        memoryview(
            build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )
    )
