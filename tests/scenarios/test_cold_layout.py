"""Cold readers find every offset, without gaps, in any order of a broker's writes, rolls,
cleanings, deletions, trims and uploads.

Both sides use the real code: `StreamTrims` decides what the broker trims, `lay_out` derives a cold
reader's layout from committed data (docs/design/spark.md#snapshots).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ponor_broker.partitions.log.stream_trims import StreamTrims
from ponor_partition import meta_entry
from ponor_partition.log_meta import LogMeta
from ponor_partition.meta_entry import MetaEntry, MetaKey, fold
from ponor_partition.segment import CLEANED, DATA, Content, Segment, Slice
from ponor_runtime.identity import StreamId
from ponor_spark.partition_layout import CommittedRange, PartitionBehindError, lay_out

LOG, KEPT = DATA, DATA + CLEANED


@dataclass
class ModelStream:
    """A stream as its broker sees it: trimmed, committed and appended offsets; `kafka` maps stream
    offsets to Kafka offsets.
    """

    stream_id: int
    start_offset: int = 0
    committed_offset: int = 0
    next_offset: int = 0
    kafka: dict[int, int] = field(default_factory=dict)

    def append(self, kafka_offset: int) -> None:
        self.kafka[self.next_offset] = kafka_offset
        self.next_offset += 1


class ColdReading(RuleBasedStateMachine):
    """One partition under one leader. Appends are durable immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.meta = ModelStream(1)
        self.streams = {LOG: ModelStream(2), KEPT: ModelStream(3)}
        self.entries: list[MetaEntry] = []
        self.log = LogMeta()
        self.log_start = 0
        for name, stream in self.streams.items():
            self.change(LogMeta.stream_change(name, StreamId(stream.stream_id)))
        self.change(LogMeta.roll_change(0, {DATA: 0}, 0))
        self.trims = StreamTrims(self.log, self.streams, self.meta)  # type: ignore[arg-type]

    def teardown(self) -> None:
        self.loop.close()

    def put(self, key: MetaKey, value: bytes, *, is_change: bool) -> None:
        self.entries.append(MetaEntry(key, value, is_change))
        self.meta.append(0)

    def change(self, change: bytes) -> None:
        """Write a change of the segment list. The first entry of a key must be a whole value, so the first
        change writes the whole list.
        """
        self.log.apply_change(change)
        is_first = not any(entry.key == LogMeta.key for entry in self.entries)
        self.put(LogMeta.key, self.log.snapshot() if is_first else change, is_change=not is_first)

    @property
    def end(self) -> int:
        return self.streams[LOG].next_offset

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.streams[LOG].append(self.end)

    @precondition(lambda self: self.end > self.log.active.base_offset)
    @rule()
    def roll(self) -> None:
        self.change(LogMeta.roll_change(self.end, {DATA: self.end}, 0, Content(1, -1, -1)))

    @precondition(lambda self: len(self.log.segments) > 1 and self.log_start < self.log.active.base_offset)
    @rule(data=st.data())
    def clean(self, data: st.DataObject) -> None:
        """Replace some closed segments by one at the end of the cleaned stream."""
        closed = self.log.segments[:-1]
        first = data.draw(st.integers(0, len(closed) - 1))
        last = data.draw(st.integers(first, len(closed) - 1))
        base, end = closed[first].base_offset, closed[last].end_offset
        kept = self.streams[KEPT]
        begin = kept.next_offset
        for offset in range(base, end):
            kept.append(offset)
        cleaned = Segment(base, CLEANED, ((DATA, Slice(begin, kept.next_offset)),), 0, Content(1, -1, -1))
        self.put(LogMeta.key, LogMeta.clean_change(cleaned), is_change=True)
        durable: asyncio.Future[None] = self.loop.create_future()
        self.trims.hold_until(durable)
        self.log.apply_change(LogMeta.clean_change(cleaned))
        durable.set_result(None)
        self.loop.run_until_complete(asyncio.sleep(0))

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.log_start = data.draw(st.integers(self.log_start, self.end))
        value: dict[str, Any] = {"start": self.log_start, "recover": self.end, "clean": False}
        self.put(meta_entry.PARTITION, json.dumps(value).encode(), is_change=False)

    @rule()
    def trim(self) -> None:
        """Trim as `PartitionLog.trim` does."""
        if self.log.segment_of(self.log_start) is not self.log.segments[0]:
            self.change(LogMeta.drop_change(self.log_start))
        needed = {stream.stream_id: offset for stream, offset in self.trims.due(self.log_start)}
        for each in self.streams.values():
            each.start_offset = max(each.start_offset, needed.get(StreamId(each.stream_id), 0))

    @rule()
    def upload(self) -> None:
        for stream in (self.meta, *self.streams.values()):
            stream.committed_offset = stream.next_offset

    @rule(names=st.lists(st.sampled_from([LOG, KEPT]), min_size=1))
    def upload_large_runs(self, names: list[str]) -> None:
        """The small rest is carried; it always contains the Meta stream
        (docs/design/storage-and-write-path.md#small-rests).
        """
        for name in names:
            self.streams[name].committed_offset = self.streams[name].next_offset

    @rule()
    def upload_in_two_commits(self) -> None:
        """Commit the Meta stream first and the other stream later."""
        self.meta.committed_offset = self.meta.next_offset

    @invariant()
    def a_cold_reader_finds_everything(self) -> None:
        committed = {
            name: CommittedRange(
                stream.stream_id, stream.start_offset, max(stream.start_offset, stream.committed_offset)
            )
            for name, stream in self.streams.items()
        }
        values = fold(self.entries[: self.meta.committed_offset])
        try:
            layout = lay_out(values, committed)
        except PartitionBehindError:
            kept = self.streams[KEPT]
            assert kept.committed_offset < kept.next_offset, "only what is between two commits may be missing"
            return
        noted = values.get(meta_entry.PARTITION)
        noted_start = json.loads(noted.whole)["start"] if noted and noted.whole else 0
        assert noted_start <= layout.log_start_offset <= self.log_start, "nothing above the log start is lost"
        reached = layout.log_start_offset
        by_id = {stream.stream_id: stream for stream in self.streams.values()}
        for part in layout.segments:
            assert part.base_offset == reached
            stream = by_id[part.stream_id]
            for offset in range(part.base_offset, part.end_offset):
                at = offset - part.kafka_shift
                assert stream.start_offset <= at < stream.committed_offset
                assert stream.kafka[at] == offset
            reached = part.end_offset
        assert reached == layout.committed_end_offset
        assert reached == max(layout.log_start_offset, self.streams[LOG].committed_offset)


ColdReading.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
TestColdReading = ColdReading.TestCase
