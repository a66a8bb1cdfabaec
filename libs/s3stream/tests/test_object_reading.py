"""Reading a stream from objects: pieces, offsets within records, lagging metadata, deleted objects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectNotFoundError, ObjectStoreUnavailableError
from ponor_runtime.system import SystemClock
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import ObjectCorruptError, ReadTimeoutError
from s3stream.objects.inspect import describe, verify
from s3stream.objects.keys import object_key
from s3stream.objects.writer import ObjectWriter
from s3stream.ports import PIECES_MAX, ObjectPiece, PreparedObjects, UploadedObject, WalName
from s3stream.reader import VANISHED_TRIES_MAX, ObjectStreamReader
from s3stream.records import StreamRecord

from libs.s3stream.tests.store_rig import Failure, InstantClock, MemoryObjectStore

MINE, OTHER = StreamId(5), StreamId(9)


class Metadata:
    """A read index with the pieces of stream `MINE` by offset. The first `lag` answers are empty;
    `answers` counts the queries.
    """

    def __init__(self) -> None:
        self.pieces: list[ObjectPiece] = []
        self.lag = 0
        self.answers = 0
        self.replacement: list[ObjectPiece] | None = None

    async def find_objects(
        self, stream_id: StreamId, start_offset: int, end_offset: int, *, pieces_max: int = PIECES_MAX
    ) -> list[ObjectPiece]:
        assert stream_id == MINE
        self.answers += 1
        if self.lag > 0:
            self.lag -= 1
            return []
        found = [
            piece
            for piece in self.pieces
            if piece.end_offset > start_offset and piece.start_offset < end_offset
        ]
        if self.replacement is not None:
            self.pieces, self.replacement = self.replacement, None
        return found[:pieces_max]

    async def prepare_objects(self, count: int) -> PreparedObjects:
        raise AssertionError("a reader prepares nothing")

    async def commit_upload(
        self,
        stream_set_object: UploadedObject | None,
        stream_objects: Sequence[UploadedObject],
        *,
        trim_sequence: int = 0,
        recovered: WalName | None = None,
    ) -> None:
        raise AssertionError("a reader commits nothing")


class World:
    """A store, its metadata and a reader."""

    def __init__(self, *, block_bytes_max: int = 300, cache_bytes_max: int = 1 << 20) -> None:
        self.store = MemoryObjectStore()
        self.metadata = Metadata()
        self.block_bytes_max = block_bytes_max
        self.reader = ObjectStreamReader(
            store=self.store,
            objects=self.metadata,
            clock=InstantClock(),
            telemetry=Telemetry(),
            block_cache_bytes_max=cache_bytes_max,
            timeout_ms=20_000,
        )

    async def put(self, object_id: int, records: Sequence[StreamRecord]) -> ObjectPiece:
        """Store an object that also contains records of other streams before and after; return the
        piece of `MINE`.
        """
        writer = ObjectWriter(ObjectId(object_id), block_bytes_max=self.block_bytes_max)
        writer.add(record(0, 3, b"before", stream=StreamId(1)))
        for each in records:
            writer.add(each)
        writer.add(record(0, 3, b"after", stream=OTHER))
        encoded = writer.finish()
        await self.store.put(object_key("ns", ObjectId(object_id)), encoded.buffers)
        return ObjectPiece(
            ObjectId(object_id), "ns", 0, encoded.size_bytes, records[0].base_offset, records[-1].end_offset
        )

    async def add(self, object_id: int, records: Sequence[StreamRecord]) -> None:
        self.metadata.pieces.append(await self.put(object_id, records))

    async def read(self, start: int, end: int, max_bytes: int = 1 << 30) -> list[StreamRecord]:
        return await self.reader.read(MINE, start, end, max_bytes)


def record(
    offset: int, count: int, payload: bytes, *, epoch: int = 0, stream: StreamId = MINE, timestamp: int = -1
) -> StreamRecord:
    return StreamRecord(stream, StreamEpoch(epoch), offset, count, timestamp, payload)


def run(
    first: int, number: int, *, count: int = 10, payload_bytes: int = 50, epoch: int = 0
) -> list[StreamRecord]:
    return [
        record(first + place * count, count, bytes([place % 256]) * payload_bytes, epoch=epoch)
        for place in range(number)
    ]


@st.composite
def chopped_streams(draw: st.DrawFn) -> list[list[StreamRecord]]:
    """Divide a stream's records over objects; epochs may rise at any record."""
    offset = draw(st.integers(0, 1 << 40))
    epoch = 0
    objects: list[list[StreamRecord]] = []
    for _ in range(draw(st.integers(1, 4))):
        records: list[StreamRecord] = []
        for _ in range(draw(st.integers(1, 6))):
            epoch += draw(st.sampled_from([0, 0, 1]))
            count = draw(st.integers(1, 5))
            records.append(record(offset, count, draw(st.binary(max_size=200)), epoch=epoch))
            offset += count
        objects.append(records)
    return objects


class TestRanges:
    @given(chopped_streams(), st.integers(1, 500), st.data())
    async def test_any_range_returns_the_same_records(
        self, objects: list[list[StreamRecord]], block_bytes_max: int, data: st.DataObject
    ) -> None:
        world = World(block_bytes_max=block_bytes_max)
        for number, records in enumerate(objects):
            await world.add(number, records)
        everything = [each for records in objects for each in records]
        start = data.draw(st.integers(everything[0].base_offset, everything[-1].end_offset - 1))
        end = data.draw(st.integers(start + 1, everything[-1].end_offset))
        max_bytes = data.draw(st.sampled_from([0, 100, 1000, 1 << 30]))
        found = await world.read(start, end, max_bytes)
        expected = [each for each in everything if each.end_offset > start and each.base_offset < end]
        assert found == expected[: len(found)]
        assert found
        assert sum(len(each.payload) for each in found) <= max_bytes or len(found) == 1
        if len(found) < len(expected):
            assert sum(len(each.payload) for each in expected[: len(found) + 1]) >= max_bytes

    async def test_the_first_record_may_contain_the_start_offset(self) -> None:
        world = World()
        await world.add(1, run(100, 20))
        found = await world.read(157, 165)
        assert [(each.base_offset, each.end_offset) for each in found] == [(150, 160), (160, 170)]

    async def test_the_first_record_is_returned_regardless_of_its_size(self) -> None:
        world = World()
        await world.add(1, [record(0, 1, b"x" * 100_000), record(1, 1, b"y")])
        assert [len(each.payload) for each in await world.read(0, 2, 10)] == [100_000]

    async def test_a_read_respects_its_byte_limit(self) -> None:
        world = World()
        await world.add(1, run(0, 20))
        assert len(await world.read(0, 200, 5 * 50)) == 5
        assert len(await world.read(0, 200, 5 * 50 - 1)) == 4

    async def test_a_short_answer_of_the_read_index_gives_a_short_read(self) -> None:
        world = World()
        await world.add(1, run(0, 5))
        assert (await world.read(0, 1000))[-1].end_offset == 50


class TestRequests:
    async def test_a_read_needs_one_get_to_open_and_one_for_adjacent_blocks(self) -> None:
        world = World(cache_bytes_max=8 << 20)
        await world.add(1, run(0, 100, payload_bytes=5000))
        await world.read(0, 500)
        assert [call[0] for call in world.store.calls if call[0] != "put"] == ["get_tail", "get"]
        await world.read(0, 500)
        assert len(world.store.calls) == 3, "the second read is answered from memory"

    async def test_opening_a_small_object_reads_it(self) -> None:
        world = World()
        await world.add(1, run(0, 100))
        await world.read(0, 1000)
        await world.read(500, 1000)
        assert [call[0] for call in world.store.calls if call[0] != "put"] == ["get_tail"]

    async def test_damage_in_the_opened_tail_is_fetched_again(self) -> None:
        world = World()
        await world.add(1, run(0, 5))
        answers = iter([True])
        world.store.change = lambda _key, data: b"!" + data[1:] if next(answers, False) else data
        assert len(await world.read(0, 50)) == 5

    async def test_pieces_of_one_read_are_fetched_concurrently(self) -> None:
        world = World()
        for number in range(6):
            await world.add(number, run(number * 100, 10, payload_bytes=20_000))
        await world.read(0, 10)
        await world.read(300, 310)
        world.store.calls.clear()
        world.store.gate.clear()
        reading = asyncio.create_task(world.read(0, 600))
        in_flight = [0]
        for _ in range(40):
            await asyncio.sleep(0)
        in_flight.append(len(world.store.calls))
        world.store.gate.set()
        assert len(await reading) == 60
        assert in_flight[-1] > 1, "the second and third object are opened together"

    async def test_a_small_read_does_not_fetch_the_rest(self) -> None:
        world = World()
        await world.add(1, run(0, 1000))
        await world.read(0, 10_000, 500)
        fetched = sum(call[3] for call in world.store.calls if call[0] == "get")
        assert fetched < 2000


class TestLaggingMetadata:
    async def test_an_empty_answer_of_the_read_index_is_retried(self) -> None:
        world = World()
        await world.add(1, run(0, 5))
        world.metadata.lag = 7
        assert len(await world.read(0, 50)) == 5
        assert world.metadata.answers == 8

    async def test_retries_end_at_the_deadline(self) -> None:
        world = World()
        world.metadata.lag = 1 << 30
        reader = ObjectStreamReader(
            store=world.store,
            objects=world.metadata,
            clock=SystemClock(),
            telemetry=Telemetry(),
            block_cache_bytes_max=1 << 20,
        )
        with pytest.raises(ReadTimeoutError, match=r"stream 5, offset 3: .* within 30 ms"):
            await reader.read(MINE, 3, 50, 1000, timeout_ms=30)


class TestVanishedObjects:
    async def test_a_missing_object_repeats_the_read_index_query(self) -> None:
        """Compaction replaced the object and GC deleted it after the first answer."""
        world = World()
        old = await world.put(1, run(0, 5))
        new = await world.put(2, run(0, 5))
        world.metadata.pieces, world.metadata.replacement = [old], [new]
        del world.store.objects[object_key("ns", ObjectId(1))]
        assert len(await world.read(0, 50)) == 5

    async def test_a_cached_index_of_a_deleted_object_is_dropped(self) -> None:
        world = World(cache_bytes_max=1)
        await world.add(1, run(0, 5))
        await world.read(0, 50)
        old, new = world.metadata.pieces[0], await world.put(2, run(0, 5))
        world.metadata.pieces, world.metadata.replacement = [old], [new]
        del world.store.objects[object_key("ns", ObjectId(1))]
        assert len(await world.read(0, 50)) == 5

    async def test_records_before_a_missing_object_are_returned(self) -> None:
        world = World()
        await world.add(1, run(0, 5))
        await world.add(2, run(50, 5))
        del world.store.objects[object_key("ns", ObjectId(2))]
        assert (await world.read(0, 100))[-1].end_offset == 50

    async def test_a_lost_object_is_named_after_bounded_retries(self) -> None:
        world = World()
        await world.add(1, run(0, 5))
        del world.store.objects[object_key("ns", ObjectId(1))]
        with pytest.raises(ObjectNotFoundError, match=object_key("ns", ObjectId(1))):
            await world.read(0, 50)
        assert world.metadata.answers == VANISHED_TRIES_MAX


class TestFailures:
    async def test_an_object_without_the_listed_data_is_corrupt(self) -> None:
        world = World()
        piece = await world.put(1, run(0, 5))
        world.metadata.pieces = [ObjectPiece(piece.object_id, "ns", 0, piece.size_bytes, 0, 60)]
        assert (await world.read(0, 60))[-1].end_offset == 50
        with pytest.raises(
            ObjectCorruptError, match="has stream 5 up to offset 50; the metadata says up to 60"
        ):
            await world.read(50, 60)

    async def test_a_gap_between_pieces_ends_the_read(self) -> None:
        world = World()
        await world.add(1, run(0, 5))
        await world.add(2, run(60, 5))
        assert (await world.read(0, 110))[-1].end_offset == 50
        with pytest.raises(ObjectCorruptError, match=r"record \[60, 70\) of stream 5; expected offset 50"):
            await world.read(50, 110)

    async def test_a_damaged_block_is_never_returned(self) -> None:
        world = World()
        await world.add(1, run(0, 20))
        key = object_key("ns", ObjectId(1))
        broken = bytearray(world.store.objects[key])
        broken[400] ^= 1
        world.store.objects[key] = bytes(broken)
        with pytest.raises(ObjectCorruptError, match=rf"{key}, position \d+: block CRC32C"):
            await world.read(0, 200)

    async def test_a_failing_store_raises_its_error(self) -> None:
        world = World()
        await world.add(1, run(0, 5, payload_bytes=50_000))
        world.store.fail("get", Failure())
        with pytest.raises(ObjectStoreUnavailableError):
            await world.read(0, 50)
        assert len(await world.read(0, 50)) == 5
        await world.reader.close()


class TestInspection:
    async def test_an_object_is_described_by_its_index_alone(self) -> None:
        world = World()
        await world.put(1, [*run(0, 3), record(30, 1, b"later", epoch=2, timestamp=77)])
        key = object_key("ns", ObjectId(1))
        world.store.calls.clear()
        description = await describe(world.store, key)
        assert (description.namespace, description.object_id, description.format_version) == ("ns", 1, 1)
        assert (description.stream_count, description.record_count, description.max_timestamp_ms) == (
            3,
            6,
            77,
        )
        assert [(entry.stream_id, entry.epoch) for entry in description.blocks] == [
            (1, 0),
            (5, 0),
            (5, 2),
            (9, 0),
        ]
        assert description.size_bytes == len(world.store.objects[key])
        assert [call[0] for call in world.store.calls] == ["get_tail"]

    async def test_verification_lists_all_problems_of_an_object(self) -> None:
        world = World(block_bytes_max=100)
        await world.put(1, run(0, 5))
        key = object_key("ns", ObjectId(1))
        assert await verify(world.store, key) == []
        sound = world.store.objects[key]
        index = (await describe(world.store, key)).blocks
        broken = bytearray(sound)
        for entry in (index[1], index[3]):
            broken[entry.position + 45] ^= 1
        world.store.objects[key] = bytes(broken)
        problems = await verify(world.store, key)
        assert [
            f"{key}, position {index[1].position}: " in problems[0],
            f"position {index[3].position}: " in problems[1],
        ] == [
            True,
            True,
        ]
        assert len(problems) == 2
        world.store.objects[key] = sound[:-1]
        assert len(await verify(world.store, key)) == 1
