"""A compacted partition on memory streams, and the real cleaner over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ponor_broker.partitions.cleaning.cleaner import LogCleaner
from ponor_broker.partitions.cleaning.cleaning_pass import CleaningLimits
from ponor_broker.partitions.cleaning.pace import Pace
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_partition.log_meta import LogMeta
from ponor_runtime.identity import StreamId
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.memory_streams import MemoryStream, MemoryStreams
from services.broker.tests.partition_rig import PartitionRig

COMPACTED = TopicConfig(
    is_compacted=True, deletes_old=False, retention_ms=-1, min_cleanable_ratio=0.0, delete_retention_ms=1_000
)

IDS = {"meta": 99, "log": 100, "time": 101, "log.cleaned": 102, "time.cleaned": 103}


class Stored(NamedTuple):
    """A record as a reader sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class CleaningRig:
    """Opens, appends, cleans, reads. `map_bytes_max` bounds the cleaner's map."""

    def __init__(
        self,
        config: TopicConfig = COMPACTED,
        *,
        map_bytes_max: int = 1 << 20,
        rig: PartitionRig | None = None,
    ) -> None:
        self.rig = rig or PartitionRig(config=config)
        self.telemetry = Telemetry()
        self.partition: Partition | None = None
        self.touched: list[Partition] = []
        self.cleaner = LogCleaner(
            lambda: [] if self.partition is None else [self.partition],
            self.rig.owned,
            self.touched.append,
            self.rig.clock,
            self.telemetry,
            CleaningLimits(map_bytes_max, 1 << 20),
            Pace(self.rig.clock, bytes_per_s_max=0, busy_percent_max=100),
            interval_ms=1_000,
        )

    async def open(self) -> Partition:
        """As after a move or a crash."""
        self.partition = await self.rig.open()
        return self.partition

    @property
    def log_meta(self) -> LogMeta:
        assert self.partition is not None
        return self.partition.log.log_meta

    async def append(
        self, records: Sequence[NewRecord | tuple[int, bytes, bytes | None]], **options: object
    ) -> int:
        """One batch; returns its base offset."""
        assert self.partition is not None
        base_offset = self.partition.log_end_offset
        await self.partition.append_batch(build_batch(records, **options))  # type: ignore[arg-type]
        return base_offset

    def roll(self) -> None:
        """Close the active segment."""
        assert self.partition is not None
        self.partition.log.roll(self.rig.clock.now_ms)

    async def clean(self) -> int:
        """Clean until nothing is dirty, then trim as maintenance does; return the number of passes."""
        assert self.partition is not None
        passes = 0
        while await self.cleaner.round():
            passes += 1
            assert passes < 1_000, "it goes on and on"
        await self.rig.streams.force_upload()
        await self.partition.log.trim(self.partition.log_start_offset)
        return passes

    async def read(self) -> list[Stored]:
        """Return every record as a consumer reads them; check the guarantees for readers."""
        assert self.partition is not None
        found: list[Stored] = []
        offset = self.partition.log_start_offset
        while offset < self.partition.high_watermark:
            for record in await self.partition.read(offset, 300):
                batch = BatchView(memoryview(record.payload))
                batch.check_crc()
                assert batch.base_offset <= batch.last_offset
                assert batch.last_offset >= offset, "a fetch returns what lies at its offset, or behind it"
                offset = batch.next_offset
                found += [Stored(*one) for one in batch.records(1 << 20)]
        assert offset == self.partition.high_watermark
        return [one for one in found if one.offset >= self.partition.log_start_offset]

    def stream(self, kind: str) -> MemoryStream:
        return self.rig.stream(kind)

    async def settings(self, **changes: object) -> None:
        """Change the topic's configs."""
        assert self.partition is not None
        self.partition.apply_config(replace(self.partition.config, **changes))  # type: ignore[arg-type]


class NumberedStreams(MemoryStreams):
    """Streams with the numbers of the example."""

    async def create_streams(self, tags: Sequence[Mapping[str, str]]) -> list[StreamId]:
        for one in tags:
            self.streams[IDS[one["kind"]]] = MemoryStream(IDS[one["kind"]], -1)
            self.tags[IDS[one["kind"]]] = one
        return [StreamId(IDS[one["kind"]]) for one in tags]


async def example() -> CleaningRig:
    """Segments [0, 2), [2, 5) and the active one from 5 on; the last records of their keys are 1, 2 and 4."""
    one = CleaningRig(rig=PartitionRig(config=COMPACTED, streams=NumberedStreams()))
    partition = await one.open()
    await one.rig.owned.add_time_streams([partition])
    for offset, key in enumerate((b"a", b"a", b"b", b"c", b"c", b"d", b"a")):
        if offset in {2, 5}:
            one.roll()
        assert await one.append([(offset, key, b"v%d" % offset)]) == offset
    return one
