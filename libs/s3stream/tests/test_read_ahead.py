"""Read-ahead: requests of sequential readers, and the claims of readers that stop."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import ObjectCorruptError
from s3stream.objects.format import BLOCK_BYTES_MAX
from s3stream.objects.keys import object_key
from s3stream.objects.writer import ObjectWriter
from s3stream.ports import PIECES_MAX, ObjectPiece, PreparedObjects, UploadedObject, WalName
from s3stream.reader import ObjectStreamReader
from s3stream.records import StreamRecord

from libs.s3stream.tests.store_rig import Failure, InstantClock, MemoryObjectStore

RECORD_BYTES = 16 * 1024
BLOCK_PAYLOAD_BYTES = 3 * RECORD_BYTES
"""Records in a block of 64 KiB, including their headers."""
KIB = 1024


class Metadata:
    """The read index of a few streams."""

    def __init__(self) -> None:
        self.pieces: dict[StreamId, list[ObjectPiece]] = {}

    async def find_objects(
        self, stream_id: StreamId, start_offset: int, end_offset: int, *, pieces_max: int = PIECES_MAX
    ) -> list[ObjectPiece]:
        return [
            piece
            for piece in self.pieces[stream_id]
            if piece.end_offset > start_offset and piece.start_offset < end_offset
        ][: min(pieces_max, 8)]

    async def prepare_objects(self, count: int) -> PreparedObjects:
        raise AssertionError("a reader prepares nothing")

    async def commit_upload(
        self,
        stream_set_object: UploadedObject | None,
        stream_objects: object,
        *,
        trim_sequence: int = 0,
        recovered: WalName | None = None,
    ) -> None:
        raise AssertionError("a reader commits nothing")


class World:
    """Streams in objects, and a reader with a small cache. Offsets count records."""

    def __init__(self, *, cache_bytes: int, block_bytes: int = 4 * RECORD_BYTES, blocks_max: int = 8) -> None:
        self.store = MemoryObjectStore()
        self.metadata = Metadata()
        self.telemetry = Telemetry()
        self.clock = InstantClock()
        self.block_bytes = block_bytes
        self.data_bytes = 0
        self.cache_bytes = cache_bytes
        self.reader = ObjectStreamReader(
            store=self.store,
            objects=self.metadata,
            clock=self.clock,
            telemetry=self.telemetry,
            block_cache_bytes_max=cache_bytes,
            read_ahead_blocks_max=blocks_max,
        )

    async def fill(
        self, stream: int, records: int, *, per_object: int, record_bytes: int = RECORD_BYTES
    ) -> None:
        """Store each stream in its own objects."""
        stream_id = StreamId(stream)
        pieces = self.metadata.pieces.setdefault(stream_id, [])
        for start in range(0, records, per_object):
            object_id = ObjectId(len(self.store.objects))
            writer = ObjectWriter(object_id, block_bytes_max=self.block_bytes)
            end = min(start + per_object, records)
            for offset in range(start, end):
                writer.add(
                    StreamRecord(
                        stream_id, StreamEpoch(0), offset, 1, -1, bytes([offset % 251]) * record_bytes
                    )
                )
            encoded = writer.finish()
            await self.store.put(object_key("ns", object_id), encoded.buffers)
            pieces.append(ObjectPiece(object_id, "ns", 0, encoded.size_bytes, start, end))
            self.data_bytes += encoded.size_bytes
        self.store.calls.clear()

    async def scan(self, stream: int, records: int, read_bytes: int) -> None:
        """Read a whole stream in order and check every record."""
        offset = 0
        while offset < records:
            found = await self.reader.read(StreamId(stream), offset, records, read_bytes)
            for record in found:
                assert record.base_offset == offset
                assert record.payload[0] == offset % 251
                offset += 1

    @property
    def bytes_read(self) -> int:
        """Bytes of GETs, including those that open objects."""
        return sum(length for op, _, _, length in self.store.calls if op != "put")

    def blocks(self, result: str) -> int:
        """Blocks read ahead, by result."""
        return dict(self.telemetry.counters("ponor_read_ahead_blocks_total")).get((result,), 0)

    @property
    def ahead_bytes(self) -> float:
        """Bytes claimed now."""
        return dict(self.telemetry.gauges("ponor_read_ahead_bytes"))[()]

    async def settle(self) -> None:
        """Wait for all requests in flight."""
        for _ in range(200):
            await asyncio.sleep(0)


async def test_a_scan_of_eight_times_the_cache_reads_every_byte_once() -> None:
    """At most 1.02 times the bytes: the excess is indexes, and blocks truncated by an opening's tail."""
    world = World(cache_bytes=8 << 20, block_bytes=BLOCK_BYTES_MAX)
    records = (64 << 20) // RECORD_BYTES
    await world.fill(1, records, per_object=records // 4)
    await world.scan(1, records, 1 << 20)
    assert world.bytes_read <= 1.02 * world.data_bytes
    gets = [length for op, _, _, length in world.store.calls if op == "get"]
    assert sum(gets) / len(gets) > BLOCK_BYTES_MAX, "few large requests"
    assert world.blocks("given_up") == 0


async def test_eight_scans_share_a_small_cache() -> None:
    world = World(cache_bytes=16 << 20, block_bytes=BLOCK_BYTES_MAX)
    records = (16 << 20) // RECORD_BYTES
    for stream in range(8):
        await world.fill(stream, records, per_object=records)
    await asyncio.gather(*(world.scan(stream, records, 1 << 20) for stream in range(8)))
    assert world.bytes_read <= 1.02 * world.data_bytes
    assert world.blocks("given_up") == 0


async def test_the_window_grows_with_every_sequential_read() -> None:
    world = World(cache_bytes=64 << 20, block_bytes=4 * RECORD_BYTES)
    await world.fill(1, 400, per_object=400)
    ahead = []
    offset = 0
    for _ in range(20):
        found = await world.reader.read(StreamId(1), offset, 400, RECORD_BYTES)
        offset = found[-1].end_offset
        await world.settle()
        ahead.append(round(world.ahead_bytes / (3 * RECORD_BYTES)))
    assert ahead[0] <= 2, "first the rest of what was fetched"
    assert max(ahead) == 8, "in the end the bound"


async def test_random_reads_read_nothing_ahead() -> None:
    world = World(cache_bytes=64 << 20)
    await world.fill(1, 400, per_object=400)
    await world.reader.read(StreamId(1), 0, 400, 1)
    opened = len(world.store.calls)
    for offset in (300, 21, 151, 92, 220):
        await world.reader.read(StreamId(1), offset, 400, 1)
        await world.settle()
    gets = [length for op, _, _, length in world.store.calls[opened:] if op == "get"]
    assert [round(length / (3 * RECORD_BYTES)) for length in gets] == [1, 1, 2, 2, 2], (
        "two where a block's end may come first"
    )


async def test_an_idle_reader_loses_its_claims() -> None:
    world = World(cache_bytes=64 << 20)
    await world.fill(1, 400, per_object=400)
    await world.fill(2, 400, per_object=400)
    offset = 0
    for _ in range(4):
        offset = (await world.reader.read(StreamId(1), offset, 400, BLOCK_PAYLOAD_BYTES))[-1].end_offset
        await world.settle()
    held = world.ahead_bytes
    assert held > 0
    world.clock.now_ns += 61_000_000_000
    await world.reader.read(StreamId(2), 0, 400, 1)
    assert world.blocks("dropped") > 0
    assert world.ahead_bytes < held


async def test_a_waiting_read_gets_the_room_of_claims() -> None:
    """Claimed blocks of idle readers never block a waiting read."""
    world = World(cache_bytes=1 << 20, block_bytes=4 * RECORD_BYTES)
    await world.fill(1, 400, per_object=400)
    await world.fill(2, 4, per_object=4, record_bytes=700 * KIB)
    offset = 0
    for _ in range(6):
        offset = (await world.reader.read(StreamId(1), offset, 400, BLOCK_PAYLOAD_BYTES))[-1].end_offset
        await world.settle()
    assert world.ahead_bytes > 300 * KIB
    assert len(await world.reader.read(StreamId(2), 0, 4, 1)) == 1
    assert world.blocks("given_up") > 0
    await world.scan(1, 400, BLOCK_PAYLOAD_BYTES)


async def test_a_read_ahead_failure_is_raised_by_the_read_that_needs_the_block() -> None:
    world = World(cache_bytes=64 << 20)
    await world.fill(1, 100, per_object=100)
    # One byte more than a block contains, so the next block is read ahead.
    offset = (await world.reader.read(StreamId(1), 0, 100, BLOCK_PAYLOAD_BYTES + 1))[-1].end_offset
    await world.settle()
    world.store.fail("get", Failure(), Failure(), Failure())
    offset = (await world.reader.read(StreamId(1), offset, 100, 1))[-1].end_offset
    await world.settle()
    world.store.failures.clear()
    while offset < 100:
        offset = (await world.reader.read(StreamId(1), offset, 100, BLOCK_PAYLOAD_BYTES))[-1].end_offset
    await world.reader.close()
    assert world.ahead_bytes == 0


@settings(max_examples=60, deadline=None)
@given(
    st.integers(200, 2_000_000),
    st.lists(
        st.tuples(
            st.integers(1, 3), st.sampled_from(["go on", "jump"]), st.integers(0, 59), st.integers(1, 100_000)
        ),
        max_size=40,
    ),
    st.data(),
)
async def test_any_mix_of_readers_gets_its_records_within_the_limit(
    cache_bytes: int, reads: list[tuple[int, str, int, int]], data: st.DataObject
) -> None:
    world = World(cache_bytes=cache_bytes, block_bytes=3000)
    for stream in (1, 2, 3):
        await world.fill(stream, 60, per_object=data.draw(st.sampled_from([7, 20, 60])), record_bytes=1000)
    places = {1: 0, 2: 0, 3: 0}
    for stream, kind, offset, read_bytes in reads:
        start = offset if kind == "jump" or places[stream] >= 60 else places[stream]
        found = await world.reader.read(StreamId(stream), start, 60, read_bytes)
        assert [record.base_offset for record in found] == list(range(start, start + len(found)))
        assert all(bytes(record.payload) == bytes([record.base_offset % 251]) * 1000 for record in found)
        places[stream] = found[-1].end_offset
    await world.settle()
    held = dict(world.telemetry.gauges("ponor_block_cache_bytes"))[()]
    assert held <= cache_bytes
    await world.reader.close()
    assert world.ahead_bytes == 0
    assert dict(world.telemetry.gauges("ponor_block_cache_bytes"))[()] == 0


async def test_a_reader_of_a_small_stream_reads_adjacent_blocks_with_one_request() -> None:
    """The layout after a compaction: each object contains about as much of the stream as a fetch
    takes. Where it contains more, the window must grow first.
    """
    for per_object, more_max in ((50, 2), (62, 2), (65, 2), (100, 4)):
        world = World(cache_bytes=64 << 20, block_bytes=BLOCK_BYTES_MAX)
        await world.fill(1, 8 * per_object, per_object=per_object)
        await world.scan(1, 8 * per_object, 1 << 20)
        gets = [length for op, _, _, length in world.store.calls if op == "get"]
        assert len(gets) <= 8 + more_max, f"{per_object} records an object"
        assert sum(gets) <= world.data_bytes


async def test_a_damaged_block_is_raised_by_the_read_that_needs_it() -> None:
    world = World(cache_bytes=64 << 20)
    await world.fill(1, 24, per_object=24)
    (key,) = world.store.objects
    data = bytearray(world.store.objects[key])
    data[6 * (3 * RECORD_BYTES + 120) + 1] ^= 1  # in the seventh block
    world.store.objects[key] = bytes(data)
    offset = 0
    for _ in range(5):
        offset = (await world.reader.read(StreamId(1), offset, 24, BLOCK_PAYLOAD_BYTES))[-1].end_offset
    assert offset == 15
    with pytest.raises(ObjectCorruptError):
        while offset < 24:
            offset = (await world.reader.read(StreamId(1), offset, 24, BLOCK_PAYLOAD_BYTES))[-1].end_offset
    assert offset == 18
