"""The cleaner against a model of Apache Kafka's: random logs, cleanings, times and reopens, with and without
transactions.

The model has no segments, maps or streams. It keeps the last record of each key below the first offset that
may not be cleaned, and tombstones until the horizon that their batch got when they were first kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.partitions.cleaning.offset_map import ENTRY_BYTES, OffsetMap
from ponor_kafka.compression import Codec
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch
from s3stream.records import TIMESTAMP_MIN

from services.broker.tests.partitions.cleaning.cleaning_kit import COMPACTED, CleaningRig

KEYS = [b"a", b"b", b"c", b"", b"a longer key than the others"]
RETENTION_MS = 1_000
MARKER_KEY = Struct(">hh")


@dataclass
class ModelBatch:
    """Records by offset; `is_void` for those of an aborted transaction."""

    records: dict[int, tuple[bytes, bytes | None]]
    is_void: bool = False
    horizon_ms: int | None = None


@dataclass
class ModelLog:
    """A model of Kafka's cleaner."""

    batches: list[ModelBatch] = field(default_factory=list)

    def clean(self, end: int, now_ms: int) -> None:
        """Clean everything below `end`."""
        last: dict[bytes, int] = {}
        for batch in self.batches:
            if not batch.is_void:
                last |= {key: offset for offset, (key, _) in batch.records.items() if offset < end}
        for batch in self.batches:
            if any(offset >= end for offset in batch.records):
                continue
            is_over = batch.horizon_ms is not None and batch.horizon_ms <= now_ms
            batch.records = {
                offset: (key, value)
                for offset, (key, value) in batch.records.items()
                if not batch.is_void and last[key] == offset and (value is not None or not is_over)
            }
            if batch.horizon_ms is None and any(value is None for _, value in batch.records.values()):
                batch.horizon_ms = now_ms + RETENTION_MS

    def records(self) -> list[tuple[int, bytes, bytes | None]]:
        return [(offset, *record) for batch in self.batches for offset, record in batch.records.items()]


record = st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=4)))
append = st.tuples(st.just("append"), st.lists(record, min_size=1, max_size=6), st.sampled_from(list(Codec)))
transaction = st.tuples(
    st.just("transaction"), st.lists(st.lists(record, min_size=1, max_size=3), max_size=3), st.booleans()
)
passing = st.tuples(st.just("wait"), st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS]), st.none())
action = st.one_of(
    append,
    append,
    append,
    transaction,
    passing,
    *(st.just((name, None, None)) for name in ("roll", "clean", "reopen")),
)


def put(one: CleaningRig, batch: bytearray) -> int:
    """Append as a coordinator of transactions would: the broker refuses such batches from clients."""
    partition = one.partition
    assert partition is not None
    view = BatchView(memoryview(batch))
    offset = partition.log.end_offset
    view.stamp(offset, partition.leader_epoch)
    times = (view.max_timestamp, TIMESTAMP_MIN)
    partition._take(bytes(batch), offset, view.last_offset_delta + 1, *times, None, 1, lambda _: None)
    return offset


def marker(producer_id: int, *, is_commit: bool) -> bytearray:
    return build_batch(
        [(7, MARKER_KEY.pack(0, int(is_commit)), bytes(6))],
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


async def live(one: CleaningRig, model: ModelLog, actions: list[tuple[str, Any, Any]]) -> None:
    partition = await one.open()
    for number, (kind, what, how) in enumerate(actions):
        partition = one.partition or partition
        match kind:
            case "append":
                offset = await one.append([(5, *record) for record in what], codec=how)
                model.batches.append(ModelBatch({offset + at: record for at, record in enumerate(what)}))
            case "transaction":
                for records in what:
                    offset = put(
                        one,
                        build_batch(
                            [(6, *record) for record in records],
                            producer_id=number,
                            producer_epoch=0,
                            base_sequence=0,
                            transactional=True,
                        ),
                    )
                    batch = {offset + at: record for at, record in enumerate(records)}
                    model.batches.append(ModelBatch(batch, is_void=not how))
                put(one, marker(number, is_commit=bool(how)))
                await asyncio.sleep(0)
            case "roll" if partition.log.end_offset > one.log_meta.active.base_offset:
                one.roll()
            case "wait":
                one.rig.clock.now_ms += what
            case "clean":
                model_end = one.log_meta.active.base_offset
                if await one.clean():
                    model.clean(model_end, one.rig.clock.now_ms)
            case "reopen":
                await one.open()
        assert one.log_meta.segments
    found = [
        (f.offset, f.key, f.value) for f in await one.read() if f.key is None or len(f.key) != MARKER_KEY.size
    ]
    assert found == model.records()


@settings(max_examples=150, deadline=None)
@given(st.lists(action, max_size=40), st.sampled_from([2, 4, 1_000]), st.sampled_from([200, 1_000, 1 << 20]))
def test_kept_records_equal_those_of_kafkas_cleaner(
    actions: list[tuple[str, Any, Any]], map_slots: int, segment_bytes: int
) -> None:
    config = replace(COMPACTED, delete_retention_ms=RETENTION_MS, segment_bytes=segment_bytes)
    asyncio.run(live(CleaningRig(config, map_bytes_max=ENTRY_BYTES * map_slots), ModelLog(), actions))


async def test_markers_outlive_their_transaction_by_the_delete_horizon() -> None:
    one = CleaningRig()
    await one.open()
    for producer_id, is_commit in ((1, True), (2, False)):
        put(one, build_batch([(6, b"k", b"%d" % producer_id)], producer_id=producer_id, transactional=True))
        put(one, marker(producer_id, is_commit=is_commit))
    found: list[list[int]] = []
    for number in range(4):
        await one.append([(7, b"other" if number else b"k", b"%d" % number)])
        one.roll()
        await one.append([(8, b"end%d" % number, b"")])
        await one.clean()
        found.append([f.offset for f in await one.read() if f.offset < 4])
        one.rig.clock.now_ms += RETENTION_MS
    # Round by round: the data goes, then the markers have nothing left and get a horizon, then they go.
    assert found[0] == [1, 3]
    assert found[1] == [1, 3]
    assert found[2:] == [[], []]


async def test_an_open_transaction_is_not_passed() -> None:
    one = CleaningRig()
    await one.open()
    await one.append([(1, b"a", b"1"), (1, b"a", b"2")])
    put(one, build_batch([(2, b"a", b"3")], producer_id=5, transactional=True))
    await one.append([(3, b"b", b"1"), (3, b"b", b"2")])
    one.roll()
    await one.append([(9, b"end", b"")])
    await one.clean()
    assert [f.offset for f in await one.read()] == [1, 2, 3, 4, 5]
    put(one, marker(5, is_commit=False))
    one.roll()
    await one.append([(9, b"end", b"")])
    one.rig.clock.now_ms += 60_000
    await one.clean()
    assert [f.offset for f in await one.read()] == [1, 4, 5, 6, 7]


@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 1000))), st.integers(1, 40))
def test_the_offset_map_equals_a_dictionary_until_it_is_full(
    puts: list[tuple[bytes, int]], slots: int
) -> None:
    offsets, known = OffsetMap(ENTRY_BYTES * slots, len(puts)), dict[bytes, int]()
    for key, offset in puts:
        if offsets.put(key, offset):
            known[key] = max(known.get(key, -1), offset)
        else:
            assert key not in known
            assert offsets.keys == len(known)
    for key, _ in puts:
        assert offsets.newest(key) == known.get(key, -1)
    assert offsets.size_bytes <= ENTRY_BYTES * max(slots, 2)


def test_a_large_offset_map_holds_the_planned_number_of_keys() -> None:
    offsets = OffsetMap(64 << 20, 100_000)
    assert all(offsets.put(b"key %d" % at, at) for at in range(100_000))
    assert offsets.keys == 100_000
    assert offsets.newest(b"key 77777") == 77_777
    assert offsets.size_bytes < 100_000 * ENTRY_BYTES * 2
