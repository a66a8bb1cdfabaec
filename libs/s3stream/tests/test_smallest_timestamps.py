"""The smallest timestamp of a block in an index: it is never above a record's timestamp, and
unknown if any record's minimum is unknown.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from s3stream.compaction.plan import PlanLimits, encoded_index
from s3stream.compaction.planning import plan_set_objects
from s3stream.compaction.sources import read_sources
from s3stream.objects.format import ENTRY, ENTRY_BYTES, SPREAD_MAX, BlockEntry, spread_of
from s3stream.objects.index import decode_footer, decode_index
from s3stream.objects.inspect import describe
from s3stream.objects.joining import joined_blocks
from s3stream.objects.writer import ObjectWriter
from s3stream.records import TIMESTAMP_MIN, StreamRecord
from s3stream.settings import KIB

from libs.s3stream.tests.compaction_rig import World, states
from libs.s3stream.tests.storage_node import StorageNode, small_settings

STREAM = StreamId(5)
OTHER = StreamId(6)
T0 = 1_700_000_000_000
TIMESTAMP_MAX = (1 << 63) - 1
timestamps = st.one_of(
    st.just(-1), st.integers(T0, T0 + 100), st.integers(-1, TIMESTAMP_MAX), st.integers(TIMESTAMP_MIN, -1)
)


class Times(NamedTuple):
    """Timestamps within a record, and whether its appender gave their minimum."""

    within: list[int]
    is_known: bool

    @property
    def newest(self) -> int:
        """Maximum as in a batch: -1 if there is no timestamp."""
        return max([-1, *self.within])

    @property
    def bound(self) -> int:
        return min(self.within) if self.is_known else TIMESTAMP_MIN


times = st.builds(Times, st.lists(timestamps, min_size=1, max_size=4), st.booleans())


def record(offset: int, each: Times) -> StreamRecord:
    return StreamRecord(STREAM, StreamEpoch(0), offset, 1, each.newest, b"payload", each.bound)


def index_of(records: list[StreamRecord], block_bytes_max: int) -> list[BlockEntry]:
    writer = ObjectWriter(ObjectId(7), block_bytes_max=block_bytes_max)
    writer.add_run(records)
    data = b"".join(writer.finish().buffers)
    footer = decode_footer("an object", ObjectId(7), data, len(data))
    end = footer.index_position + footer.index_bytes
    return list(decode_index("an object", footer, data[footer.index_position : end]))


def check(entry: BlockEntry, held: list[Times]) -> None:
    """Check that the bound is correct, and as tight as 32 bits and the given minima allow."""
    smallest = min(one for each in held for one in each.within)
    newest = max(each.newest for each in held)
    assert entry.max_timestamp_ms == newest
    assert entry.min_timestamp_ms <= smallest
    is_told = all(each.is_known for each in held) and newest - smallest < SPREAD_MAX
    assert entry.min_timestamp_ms == (smallest if is_told else TIMESTAMP_MIN)


@given(timestamps, timestamps)
def test_a_spread_survives_a_round_trip(one: int, other: int) -> None:
    smallest, largest = sorted((one, other))
    spread = spread_of(smallest, largest)
    entry = BlockEntry(STREAM, StreamEpoch(0), 0, 1, largest, 0, 40, 1, 0, spread)
    assert 0 <= spread <= SPREAD_MAX
    assert BlockEntry._make(ENTRY.unpack(entry.encode())) == entry
    assert entry.min_timestamp_ms == (smallest if largest - smallest < SPREAD_MAX else TIMESTAMP_MIN)


def test_the_largest_spread_is_encoded_and_a_larger_one_is_unknown() -> None:
    assert spread_of(T0, T0) == 1
    assert spread_of(T0 - SPREAD_MAX + 1, T0) == SPREAD_MAX
    assert spread_of(T0 - SPREAD_MAX, T0) == 0
    assert spread_of(TIMESTAMP_MIN, T0) == 0


def test_entries_of_older_versions_have_no_bound() -> None:
    entry = BlockEntry(STREAM, StreamEpoch(0), 0, 1, T0, 0, 40, 1, 0)
    assert entry.encode()[-4:] == bytes(4)
    assert entry.min_timestamp_ms == TIMESTAMP_MIN


@given(st.lists(times, min_size=1, max_size=12), st.integers(1, 300))
def test_a_written_block_bounds_its_records(drawn: list[Times], block_bytes_max: int) -> None:
    records = [record(offset, each) for offset, each in enumerate(drawn)]
    for entry in index_of(records, block_bytes_max):
        check(entry, drawn[entry.start_offset : entry.end_offset])


@given(st.lists(times, min_size=1, max_size=12), st.integers(1, 100), st.integers(1, 400))
def test_a_joined_block_bounds_the_records_of_all_its_parts(
    drawn: list[Times], block_bytes_max: int, joined_bytes_max: int
) -> None:
    parts = index_of([record(offset, each) for offset, each in enumerate(drawn)], block_bytes_max)
    joined = list(joined_blocks(parts, joined_bytes_max))
    for entry in joined:
        within = [part for part in parts if entry.start_offset <= part.start_offset < entry.end_offset]
        smallest = min(part.min_timestamp_ms for part in within)
        # A part with timestamps too far apart makes the bound of the joined block unknown, as does
        # a part without a bound.
        is_told = entry.max_timestamp_ms - smallest < SPREAD_MAX
        assert entry.min_timestamp_ms == (smallest if is_told else TIMESTAMP_MIN)
        assert entry.min_timestamp_ms <= min(
            one for each in drawn[entry.start_offset : entry.end_offset] for one in each.within
        )
    encoded = encoded_index(parts, joined_bytes_max)
    assert [BlockEntry._make(fields) for fields in ENTRY.iter_unpack(encoded)] == joined
    assert len(encoded) == ENTRY_BYTES * len(joined)


async def test_a_compaction_keeps_the_bounds() -> None:
    """Two uploads of two streams. One upload of the second stream came from a recovery, which has no
    bounds.
    """
    world = World()
    first = await world.put([(5, 0, 4), (6, 0, 4)], known_streams={5, 6})
    second = await world.put([(5, 4, 8), (6, 4, 8)], known_streams={5})
    limits = PlanLimits(
        budget_bytes=1 << 20,
        split_size_bytes=1 << 20,
        part_size_bytes_min=1,
        part_size_bytes=1 << 16,
        block_bytes_max=1 << 16,
    )
    plan = plan_set_objects(await read_sources(world.store, [first, second]), states({5: 0, 6: 0}), limits)
    (output,) = await world.run(plan)
    blocks = (await describe(world.store, output.key)).blocks
    assert [(each.stream_id, each.max_timestamp_ms, each.min_timestamp_ms) for each in blocks] == [
        (5, 7, 0),
        (6, 7, TIMESTAMP_MIN),
    ]


async def test_appended_minima_are_in_the_index_of_the_upload(tmp_path: Path) -> None:
    """A small rest is first carried from block to block, which copies its records."""
    node = await StorageNode.create(tmp_path, small_settings(small_rest_bytes_max=64 * KIB))
    await node.start()
    try:
        known, unknown, large = await node.open_new(3)
        for number in range(3):
            known.append(b"a", count=1, max_timestamp=T0 + number, min_timestamp=T0 - 5 * number)
            unknown.append(
                b"b", count=1, max_timestamp=T0 + number, min_timestamp=T0 if number else TIMESTAMP_MIN
            )
            for _ in range(24):
                await large.append(bytes(16 * KIB), count=1, max_timestamp=T0, min_timestamp=T0)
        await node.client.force_upload()
        found = {
            entry.stream_id: entry.min_timestamp_ms
            for key in [each.key async for each in node.store.list("")]
            for entry in (await describe(node.store, key)).blocks
        }
        assert found == {
            known.stream_id: T0 - 10,
            unknown.stream_id: TIMESTAMP_MIN,
            large.stream_id: T0,
        }
    finally:
        await node.close()


async def test_records_uploaded_by_a_recovery_have_no_bound(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path)
    await node.start()
    try:
        (stream,) = await node.open_new(1)
        await stream.append(b"a", count=1, max_timestamp=T0, min_timestamp=T0)
        await node.restart()
        (entry,) = [
            entry
            for key in [each.key async for each in node.store.list("")]
            for entry in (await describe(node.store, key)).blocks
        ]
        assert (entry.max_timestamp_ms, entry.spread, entry.min_timestamp_ms) == (T0, 0, TIMESTAMP_MIN)
    finally:
        await node.close()
