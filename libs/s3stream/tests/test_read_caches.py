"""Block cache and index cache: limits, shared requests, and failures."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectNotFoundError, ObjectStoreUnavailableError
from ponor_runtime.telemetry import Telemetry
from s3stream.cache.block_cache import RUN_BYTES_MAX, BlockCache, adjacent_runs
from s3stream.cache.index_cache import ObjectIndexCache
from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import memory_bytes_of
from s3stream.objects.format import BlockEntry
from s3stream.objects.index import ObjectIndex
from s3stream.objects.keys import object_key
from s3stream.objects.reader import READ_TRIES_MAX, read_index
from s3stream.objects.writer import ObjectWriter
from s3stream.records import StreamRecord

from libs.s3stream.tests.store_rig import Failure, MemoryObjectStore

BLOCK_PAYLOAD_BYTES = 1000
STREAM = StreamId(1)


async def put_object(
    store: MemoryObjectStore, object_id: int, blocks: int, *, payload_bytes: int = BLOCK_PAYLOAD_BYTES
) -> str:
    """Create an object of one stream with one record per block; offsets 0, 1, 2, …"""
    writer = ObjectWriter(ObjectId(object_id), block_bytes_max=1)
    for offset in range(blocks):
        writer.add(StreamRecord(STREAM, StreamEpoch(0), offset, 1, -1, bytes([offset % 256]) * payload_bytes))
    key = object_key("ns", ObjectId(object_id))
    await store.put(key, writer.finish().buffers)
    return key


class Rig:
    """A store with one object of ten blocks, and a cache of it."""

    def __init__(self, bytes_max: int) -> None:
        self.store = MemoryObjectStore()
        self.telemetry = Telemetry()
        self.cache = BlockCache(self.store, bytes_max=bytes_max, telemetry=self.telemetry)
        self.key = ""
        self.index: ObjectIndex

    async def start(self, blocks: int = 10, payload_bytes: int = BLOCK_PAYLOAD_BYTES) -> Rig:
        self.key = await put_object(self.store, 1, blocks, payload_bytes=payload_bytes)
        self.index = await read_index(self.store, self.key)
        self.store.calls.clear()
        return self

    async def read(self, *numbers: int) -> list[int]:
        """Read blocks by number; return the numbers found in their contents."""
        blocks = await self.cache.blocks(self.key, [self.index[number] for number in numbers])
        return [next(block.records_from(0)).base_offset for block in blocks]

    @property
    def gets(self) -> list[tuple[int, int]]:
        """First block and number of blocks of every GET."""
        size = self.index[0].size_bytes
        return [(start // size, length // size) for op, _, start, length in self.store.calls if op == "get"]

    @property
    def reads(self) -> dict[str, int]:
        return {
            values[0]: number for values, number in self.telemetry.counters("ponor_block_cache_reads_total")
        }


class TestBlockCache:
    async def test_adjacent_blocks_need_one_get(self) -> None:
        rig = await Rig(1 << 20).start()
        assert await rig.read(2, 3, 4) == [2, 3, 4]
        assert rig.gets == [(2, 3)]

    async def test_only_missing_blocks_are_fetched(self) -> None:
        rig = await Rig(1 << 20).start()
        await rig.read(3)
        assert await rig.read(1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]
        assert rig.gets == [(3, 1), (1, 2), (4, 2)]
        assert rig.reads == {"hit": 1, "miss": 5}

    async def test_concurrent_readers_of_a_block_share_a_get(self) -> None:
        rig = await Rig(1 << 20).start()
        rig.store.gate.clear()
        readers = [asyncio.create_task(rig.read(2, 3)) for _ in range(5)]
        readers.append(asyncio.create_task(rig.read(3, 4)))
        await asyncio.sleep(0)
        rig.store.gate.set()
        assert await asyncio.gather(*readers) == [[2, 3]] * 5 + [[3, 4]]
        assert sorted(rig.gets) == [(2, 2), (4, 1)]

    async def test_a_cancelled_reader_does_not_cancel_a_shared_get(self) -> None:
        rig = await Rig(1 << 20).start()
        rig.store.gate.clear()
        first = asyncio.create_task(rig.read(2))
        second = asyncio.create_task(rig.read(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        rig.store.gate.set()
        assert await second == [2]
        assert rig.gets == [(2, 1)]

    async def test_the_least_recently_used_block_is_evicted_first(self) -> None:
        rig = await Rig(1 << 20).start()
        room = 3 * memory_bytes_of(rig.index[0]) + 100
        rig.cache = BlockCache(rig.store, bytes_max=room, telemetry=rig.telemetry)
        for number in (0, 1, 2, 0, 3):
            await rig.read(number)
        rig.store.calls.clear()
        for number in (0, 2, 3):
            await rig.read(number)
        assert rig.gets == []
        await rig.read(1)
        assert rig.gets == [(1, 1)]
        assert dict(rig.telemetry.counters("ponor_block_cache_evictions_total"))[()] == 2

    async def test_cached_and_in_flight_blocks_together_stay_within_the_limit(self) -> None:
        rig = await Rig(1 << 20).start(blocks=40)
        room = 4 * memory_bytes_of(rig.index[0])
        rig.cache = BlockCache(rig.store, bytes_max=room, telemetry=rig.telemetry)
        rig.store.gate.clear()
        readers = [asyncio.create_task(rig.read(number)) for number in range(0, 40, 2)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(rig.gets) == 4, "the others wait for room"
        held: list[int] = []

        def note_what_is_held(_key: str, data: bytes) -> bytes:
            held.append(rig.cache.held_bytes)
            return data

        rig.store.change = note_what_is_held
        rig.store.gate.set()
        assert await asyncio.gather(*readers) == [[number] for number in range(0, 40, 2)]
        assert len(held) == 20
        assert max(held) <= room
        assert rig.cache.held_bytes <= room

    async def test_a_run_larger_than_the_cache_is_read_and_not_cached(self) -> None:
        rig = await Rig(500).start()
        assert await rig.read(4) == [4]
        assert rig.cache.held_bytes == 0
        assert await rig.read(4) == [4]
        assert len(rig.gets) == 2

    async def test_a_cached_block_does_not_keep_adjacent_bytes_in_memory(self) -> None:
        rig = await Rig(1 << 20).start()
        (first, _) = await rig.cache.blocks(rig.key, [rig.index[0], rig.index[1]])
        payload = next(first.records_from(0)).payload
        assert isinstance(payload, memoryview)
        assert len(bytes(payload.obj)) == rig.index[0].size_bytes

    async def test_bytes_damaged_in_transit_are_fetched_again(self) -> None:
        rig = await Rig(1 << 20).start()
        answers = iter([b"short", b""])
        rig.store.change = lambda _key, data: data[:-5] if next(answers, b"") else data
        assert await rig.read(2) == [2]
        assert len(rig.gets) == 2

    async def test_a_permanently_damaged_block_is_named(self) -> None:
        rig = await Rig(1 << 20).start()
        rig.store.change = lambda _key, data: data[:50] + b"!" + data[51:]
        with pytest.raises(
            ObjectCorruptError, match=rf"{rig.key}, position {rig.index[2].position}: block CRC32C"
        ):
            await rig.read(2)
        assert len(rig.gets) == READ_TRIES_MAX
        assert rig.cache.held_bytes == 0
        rig.store.change = lambda _key, data: data
        assert await rig.read(2) == [2], "a failure is not cached"

    async def test_a_failed_get_fails_all_its_readers_and_is_not_cached(self) -> None:
        rig = await Rig(1 << 20).start()
        rig.store.fail("get", Failure())
        results = await asyncio.gather(rig.read(2), rig.read(2), return_exceptions=True)
        assert all(isinstance(result, ObjectStoreUnavailableError) for result in results)
        assert await rig.read(2) == [2]

    async def test_close_cancels_gets_in_flight(self) -> None:
        rig = await Rig(1 << 20).start()
        rig.store.gate.clear()
        reader = asyncio.create_task(rig.read(2))
        await asyncio.sleep(0)
        await rig.cache.close()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert rig.cache.held_bytes == 0


class TestRuns:
    @given(st.lists(st.tuples(st.integers(1, 3_000_000), st.booleans()), min_size=1, max_size=30))
    def test_runs_are_adjacent_bounded_and_complete(self, blocks: list[tuple[int, bool]]) -> None:
        position = 0
        entries: list[BlockEntry] = []
        for size, hole in blocks:
            position += 7 if hole else 0
            entries.append(BlockEntry(STREAM, StreamEpoch(0), 0, 1, -1, position, size, 1, 0))
            position += size
        runs = adjacent_runs(entries)
        assert [entry for run in runs for entry in run.entries] == entries
        for run in runs:
            assert run.size_bytes == sum(entry.size_bytes for entry in run.entries)
            assert run.size_bytes <= RUN_BYTES_MAX or len(run.entries) == 1
        for before, after in pairwise(runs):
            touching = before.position + before.size_bytes == after.position
            assert not touching or before.size_bytes + after.entries[0].size_bytes > RUN_BYTES_MAX


class TestIndexCache:
    async def test_concurrent_readers_open_an_object_with_one_get(self) -> None:
        store = MemoryObjectStore()
        key = await put_object(store, 1, 10)
        cache = ObjectIndexCache(store, bytes_max=1 << 20)
        size = len(store.objects[key])
        indexes = await asyncio.gather(*(cache.open(key, size) for _ in range(5)))
        assert all(index is indexes[0] for index in indexes)
        assert await cache.open(key, size) is indexes[0]
        assert [call[0] for call in store.calls if call[0] != "put"] == ["get_tail"]

    async def test_a_wrong_estimate_costs_one_more_get(self) -> None:
        store = MemoryObjectStore()
        key = await put_object(store, 1, 3000, payload_bytes=1)
        index = await ObjectIndexCache(store, bytes_max=1 << 20).open(key, len(store.objects[key]))
        assert len(index) == 3000
        assert [call[0] for call in store.calls if call[0] != "put"] == ["get_tail", "get"]

    async def test_cached_indexes_are_limited(self) -> None:
        store = MemoryObjectStore()
        keys = [await put_object(store, object_id, 10) for object_id in range(10)]
        cache = ObjectIndexCache(store, bytes_max=3500)
        for key in keys:
            await cache.open(key, len(store.objects[key]))
            assert cache.held_bytes <= 3500
        store.calls.clear()
        await cache.open(keys[-1], len(store.objects[keys[-1]]))
        assert store.calls == []
        await cache.open(keys[0], len(store.objects[keys[0]]))
        assert len(store.calls) == 1

    async def test_an_object_with_another_size_than_in_the_metadata_is_corrupt(self) -> None:
        store = MemoryObjectStore()
        key = await put_object(store, 1, 10)
        with pytest.raises(ObjectCorruptError, match="the metadata has 77777"):
            await ObjectIndexCache(store, bytes_max=1 << 20).open(key, 77_777)

    async def test_failed_openings_are_not_cached(self) -> None:
        store = MemoryObjectStore()
        key = object_key("ns", ObjectId(1))
        cache = ObjectIndexCache(store, bytes_max=1 << 20)
        with pytest.raises(ObjectNotFoundError):
            await cache.open(key, 1000)
        await put_object(store, 1, 1)
        assert len(await cache.open(key, len(store.objects[key]))) == 1
        cache.forget(key)
        cache.forget(key)
        assert cache.held_bytes == 0

    async def test_close_cancels_openings(self) -> None:
        store = MemoryObjectStore()
        key = await put_object(store, 1, 1)
        store.gate.clear()
        cache = ObjectIndexCache(store, bytes_max=1 << 20)
        opening = asyncio.create_task(cache.open(key, len(store.objects[key])))
        await asyncio.sleep(0)
        await cache.close()
        with pytest.raises(asyncio.CancelledError):
            await opening
