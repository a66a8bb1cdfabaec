"""Data blocks of objects: bounded by bytes, least recently used first out, one GET per run of adjacent blocks.

What is being fetched counts against the bound too, before it is asked for: first it pushes cached blocks out, then it waits. Blocks
that a reader still holds after they were pushed out are that reader's to account for.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from ponor_runtime.budgets import ByteBudget
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.telemetry import Telemetry

from s3stream.cache.block_runs import BlockRun, adjacent_runs
from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import DataBlock, decode_block
from s3stream.objects.format import BlockEntry
from s3stream.objects.reader import READ_TRIES_MAX

_BlockKey: TypeAlias = tuple[str, int]
"""Object key and position: names the bytes of a block for ever, because objects are immutable."""
_Fetch: TypeAlias = "asyncio.Task[dict[int, DataBlock]]"


class BlockCache:
    """Blocks of one store's objects, shared by all readers of a process.

    `bytes_max` bounds cached and in-flight blocks together, index arrays and overhead included. A run of blocks larger than the whole bound is
    fetched when nothing else is, and kept by nobody but its reader.
    """

    def __init__(self, store: ObjectStore, *, bytes_max: int, telemetry: Telemetry) -> None:
        self._store = store
        self._bytes_max: Final = bytes_max
        self._blocks: OrderedDict[_BlockKey, DataBlock] = OrderedDict()
        self._cached_bytes = 0
        self._fetches: dict[_BlockKey, _Fetch] = {}
        self._in_flight = ByteBudget("block cache", bytes_max)
        self._hits = telemetry.counter("ponor_block_cache_reads_total", result="hit")
        self._misses = telemetry.counter("ponor_block_cache_reads_total", result="miss")
        self._evictions = telemetry.counter("ponor_block_cache_evictions_total")
        telemetry.gauge("ponor_block_cache_bytes", lambda: self.held_bytes)

    @property
    def held_bytes(self) -> int:
        """Cached blocks and those in flight."""
        return self._cached_bytes + self._in_flight.held_bytes

    async def blocks(self, key: str, entries: Sequence[BlockEntry]) -> list[DataBlock]:
        """Blocks of one object, in the order of `entries`; missing ones that lie side by side come with one GET.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectCorruptError: a block does not match its index entry, however often it is fetched.
            BudgetExceededError: too many readers wait for room already; retriable.
            ObjectStoreError: the store failed.
        """
        found: dict[int, DataBlock] = {}
        waited: dict[_Fetch, None] = {}
        missing: list[BlockEntry] = []
        for entry in entries:
            name = (key, entry.position)
            block = self._blocks.get(name)
            if block is not None:
                self._blocks.move_to_end(name)
                self._hits.add(1)
                found[entry.position] = block
                continue
            self._misses.add(1)
            fetch = self._fetches.get(name)
            if fetch is None:
                missing.append(entry)
            else:
                waited[fetch] = None
        for run in adjacent_runs(missing):
            waited[self._start(key, run)] = None
        # Shielded: a reader that gives up must not take the GETs of others with it.
        for blocks in await asyncio.gather(*(asyncio.shield(fetch) for fetch in waited)):
            found.update(blocks)
        return [found[entry.position] for entry in entries]

    def forget(self, key: str) -> None:
        """Drop the blocks of an object that has vanished from the store."""
        for name in [name for name in self._blocks if name[0] == key]:
            self._drop(name)

    async def close(self) -> None:
        """Stop fetching and drop everything."""
        fetches = list(dict.fromkeys(self._fetches.values()))
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)
        self._blocks.clear()
        self._cached_bytes = 0

    def _start(self, key: str, run: BlockRun) -> _Fetch:
        fetch = asyncio.create_task(self._fetch(key, run), name=f"fetch {key} at {run.position}")
        names = [(key, entry.position) for entry in run.entries]
        self._fetches.update(dict.fromkeys(names, fetch))

        def fetched(done: _Fetch) -> None:
            for name in names:
                del self._fetches[name]
            if not done.cancelled():
                done.exception()  # seen, even if every reader has given up meanwhile

        fetch.add_done_callback(fetched)
        return fetch

    async def _fetch(self, key: str, run: BlockRun) -> dict[int, DataBlock]:
        await self._in_flight.acquire(run.fetch_memory_bytes)
        try:
            self._make_room()
            blocks = await self._read_again_if_broken(key, run)
        finally:
            self._in_flight.release(run.fetch_memory_bytes)
        for block in blocks:
            self._keep((key, block.entry.position), block)
        self._make_room()
        return {block.entry.position: block for block in blocks}

    async def _read_again_if_broken(self, key: str, run: BlockRun) -> list[DataBlock]:
        for _ in range(READ_TRIES_MAX - 1):
            with suppress(ObjectCorruptError):
                return await self._read(key, run)
        return await self._read(key, run)

    async def _read(self, key: str, run: BlockRun) -> list[DataBlock]:
        data = await self._store.get(key, run.position, run.size_bytes)
        if len(run.entries) == 1:
            return [decode_block(key, run.entries[0], data)]
        view = memoryview(data)
        blocks: list[DataBlock] = []
        for entry in run.entries:
            start = entry.position - run.position
            # Each block gets bytes of its own: a view would keep the run in memory for as long as any block of it.
            blocks.append(decode_block(key, entry, bytes(view[start : start + entry.size_bytes])))
        return blocks

    def _keep(self, name: _BlockKey, block: DataBlock) -> None:
        assert name not in self._blocks, f"{name} was fetched twice at once"
        self._blocks[name] = block
        self._cached_bytes += block.memory_bytes

    def _make_room(self) -> None:
        while self._blocks and self._cached_bytes + self._in_flight.held_bytes > self._bytes_max:
            self._drop(next(iter(self._blocks)))
            self._evictions.add(1)

    def _drop(self, name: _BlockKey) -> None:
        self._cached_bytes -= self._blocks.pop(name).memory_bytes
