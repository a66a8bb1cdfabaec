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
from ponor_broker.handlers.fetch.committed_reads import from_objects
from ponor_broker.partitions.cleaning.offset_map import ENTRY_BYTES, OffsetMap
from ponor_broker.partitions.in_flight import settled_future
from ponor_broker.partitions.partition_transactions import TransactionMarker
from ponor_kafka.compression import Codec
from ponor_kafka.control_records import ControlType, control_type
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch

from services.broker.tests.partitions.cleaning.cleaning_kit import COMPACTED, CleaningRig

KEYS = [b"a", b"b", b"c", b"", b"a longer key than the others"]
RETENTION_MS = 1_000
PRODUCER = 7
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


def put(
    one: CleaningRig, producer_id: int, records: list[tuple[int, bytes, bytes | None]], number: int = 0
) -> int:
    """Append a transactional batch, the `number`th record of its producer on."""
    partition = one.partition
    assert partition is not None
    content = build_batch(
        records, producer_id=producer_id, producer_epoch=0, base_sequence=number, transactional=True
    )
    offset = partition.log_end_offset
    proof = partition.transactions.begin_verification(producer_id, 0, generation=1)
    partition.append_batch(content, proof)
    return offset


async def end(one: CleaningRig, producer_id: int, *, commits: bool) -> int:
    """Append a marker; return its offset."""
    partition = one.partition
    assert partition is not None
    marker = TransactionMarker(producer_id, 0, 0, commits)
    if partition.transactions.needs_stream(marker):
        await one.rig.owned.add_txn_stream(partition)
    offset = partition.log_end_offset
    durable, settled = settled_future()
    partition.append_marker(marker, settled)
    await durable
    return offset


async def live(one: CleaningRig, model: ModelLog, actions: list[tuple[str, Any, Any]]) -> None:
    partition = await one.open()
    spans: list[tuple[int, int]] = []
    for kind, what, how in actions:
        partition = one.partition or partition
        match kind:
            case "append":
                offset = await one.append([(5, *record) for record in what], codec=how)
                model.batches.append(ModelBatch({offset + at: record for at, record in enumerate(what)}))
            case "transaction":
                first = partition.log_end_offset
                known = partition.producers.entry(PRODUCER)
                sequence = 0 if known is None else known.last_sequence + 1
                for records in what:
                    offset = put(one, PRODUCER, [(6, *record) for record in records], sequence)
                    sequence += len(records)
                    batch = {offset + at: record for at, record in enumerate(records)}
                    model.batches.append(ModelBatch(batch, is_void=not how))
                spans.append((first, await end(one, PRODUCER, commits=bool(how))))
            case "roll" if partition.log.end_offset > one.log_meta.active.base_offset:
                one.roll()
            case "wait":
                one.rig.clock.now_ms += what
            case "clean":
                model_end = one.log_meta.active.base_offset
                # The outcome of a transaction whose marker is not in a closed segment is not read yet.
                open_from = [first for first, marker in spans if first < model_end <= marker]
                model_end = min([model_end, *open_from])
                if await one.clean():
                    model.clean(model_end, one.rig.clock.now_ms)
            case "reopen":
                await one.open()
        assert one.log_meta.segments
    found = [
        (f.offset, f.key, f.value) for f in await one.read() if f.key is None or len(f.key) != MARKER_KEY.size
    ]
    assert found == model.records()
    assert await committed(one) == [
        offset for batch in model.batches if not batch.is_void for offset in batch.records
    ]


async def committed(one: CleaningRig) -> list[int]:
    """Return the offsets that a consumer with `read_committed` returns, in answers as large as possible."""
    partition = one.partition
    assert partition is not None
    found: list[int] = []
    offset = partition.log_start_offset
    while offset < partition.last_stable_offset:
        read = await from_objects(partition, offset, 1 << 30)
        aborted = sorted(read.aborted or (), key=lambda transaction: transaction[1])
        skips = False
        for record in read.records:
            batch = BatchView(memoryview(record.payload))
            offset = batch.next_offset
            while aborted and aborted[0][1] <= batch.last_offset:
                skips = True
                aborted.pop(0)
            if batch.is_control:
                skips = skips and control_type(batch) != ControlType.ABORT
            elif not (batch.is_transactional and skips):
                found += [row.offset for row in batch.records(1 << 20)]
    return found


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
        put(one, producer_id, [(6, b"k", b"%d" % producer_id)])
        await end(one, producer_id, commits=is_commit)
    found: list[list[int]] = []
    for number in range(4):
        await one.append([(7, b"other" if number else b"k", b"%d" % number)])
        one.roll()
        await one.append([(8, b"end%d" % number, b"")])
        await one.clean()
        found.append([f.offset for f in await one.read() if f.offset < 4])
        one.rig.clock.now_ms += RETENTION_MS
    # Round by round: the data goes, then the abort marker has nothing left and gets a horizon, then it goes.
    # The commit marker stays as long as the header of its producer's last batch, as in Kafka.
    assert found == [[1, 3], [1, 3], [1], [1]]
    assert one.partition is not None
    one.partition.producers.expire(1 << 60)
    for number in range(4, 8):
        await one.append([(7, b"other", b"%d" % number)])
        one.roll()
        await one.append([(8, b"end%d" % number, b"")])
        await one.clean()
        one.rig.clock.now_ms += RETENTION_MS
    assert [f.offset for f in await one.read() if f.offset < 4] == []


async def test_a_removed_abort_marker_does_not_hide_the_next_transaction() -> None:
    one = CleaningRig()
    await one.open()
    put(one, PRODUCER, [(6, b"k", b"aborted")])
    await end(one, PRODUCER, commits=False)
    offset = put(one, PRODUCER, [(6, b"k", b"committed")], 1)
    await end(one, PRODUCER, commits=True)
    assert await committed(one) == [offset]
    for number in range(4):
        one.roll()
        await one.append([(8, b"end", b"%d" % number)])
        await one.clean()
        one.rig.clock.now_ms += RETENTION_MS
        assert offset in await committed(one)
    assert [f.offset for f in await one.read()][:2] == [offset, 3], "the abort marker is gone"


async def test_an_open_transaction_is_not_passed() -> None:
    one = CleaningRig()
    await one.open()
    await one.append([(1, b"a", b"1"), (1, b"a", b"2")])
    one.roll()
    put(one, 5, [(2, b"a", b"3")])
    await one.append([(3, b"b", b"1"), (3, b"b", b"2")])
    one.roll()
    await one.append([(9, b"end", b"")])
    await one.clean()
    assert [f.offset for f in await one.read()] == [1, 2, 3, 4, 5]
    await end(one, 5, commits=False)
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
