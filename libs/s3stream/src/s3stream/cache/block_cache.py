"""Cache of data blocks: bounded by bytes, evicts the least recently used block, one GET per run of adjacent blocks.

Blocks being fetched are charged before the request: they evict cached blocks first, then wait for room. Blocks that
were read ahead (`claim`) are charged as well. They are not evicted before their reader uses them, have at most half of
the room, and yield when a waiting read finds none. A reader accounts for evicted blocks that it still holds.

`read_ahead` decides what is read ahead.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from ponor_runtime.budgets import ByteBudget
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.turns import Turns

from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import DataBlock, block_steps, memory_bytes_of
from s3stream.objects.format import BlockEntry
from s3stream.objects.reader import READ_TRIES_MAX, OpenedObject

RUNS_IN_FLIGHT: Final = 8
"""A small cache asks for smaller runs, so that several readers have room at the same time."""

_BlockKey: TypeAlias = tuple[str, int]
"""Object key and position: names the bytes of a block for ever, because objects are immutable."""
_Fetch: TypeAlias = "asyncio.Task[dict[int, DataBlock]]"


RUN_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Blocks that one ranged GET brings."""

    entries: tuple[BlockEntry, ...]

    @property
    def position(self) -> int:
        """Where the run begins in its object."""
        return self.entries[0].position

    @property
    def size_bytes(self) -> int:
        """How much to get."""
        return self.entries[-1].position + self.entries[-1].size_bytes - self.position

    @property
    def fetch_memory_bytes(self) -> int:
        """What fetching it takes: its blocks, and their bytes a second time while they are cut out of one answer."""
        answer_bytes = self.size_bytes if len(self.entries) > 1 else 0
        return sum(map(memory_bytes_of, self.entries)) + answer_bytes


def adjacent_runs(entries: Sequence[BlockEntry], *, run_bytes_max: int = RUN_BYTES_MAX) -> list[BlockRun]:
    """Cut blocks of one object, in position order, into runs without holes; a larger block is a run of its own."""
    runs: list[BlockRun] = []
    run: list[BlockEntry] = []
    for entry in entries:
        if run:
            end = run[-1].position + run[-1].size_bytes
            if entry.position != end or end + entry.size_bytes - run[0].position > run_bytes_max:
                runs.append(BlockRun(tuple(run)))
                run = []
        run.append(entry)
    if run:
        runs.append(BlockRun(tuple(run)))
    return runs


class BlockCache:
    """Blocks of one store's objects, shared by all readers of a process.

    `bytes_max` bounds cached, claimed and in-flight blocks together, index arrays and overhead included. A run of blocks larger than the whole
    bound is fetched when nothing else is, and only its reader keeps it.
    """

    def __init__(
        self, store: ObjectStore, *, bytes_max: int, telemetry: Telemetry, turns: Turns | None = None
    ) -> None:
        """Blocks are decoded in `turns`, which others may share."""
        self._store = store
        self._turns = Turns() if turns is None else turns
        self._bytes_max: Final = bytes_max
        self._run_bytes_max: Final = min(RUN_BYTES_MAX, bytes_max // RUNS_IN_FLIGHT)
        self._blocks: OrderedDict[_BlockKey, DataBlock] = OrderedDict()  # may be evicted
        self._cached_bytes = 0
        self._fetches: dict[_BlockKey, _Fetch] = {}
        self._claims: dict[_BlockKey, int] = {}  # readers that will come for a block
        self._claimed: OrderedDict[_BlockKey, DataBlock] = OrderedDict()  # those that are here, oldest first
        self._claimed_here_bytes = 0
        self._claimed_bytes = 0  # of all claims, also of those still in flight
        self._pinned = ByteBudget("block cache", bytes_max)  # in flight, or claimed and here
        self._hits = telemetry.counter("ponor_block_cache_reads_total", result="hit")
        self._misses = telemetry.counter("ponor_block_cache_reads_total", result="miss")
        self._evictions = telemetry.counter("ponor_block_cache_evictions_total")
        self._given_up = telemetry.counter("ponor_read_ahead_blocks_total", result="given_up")
        telemetry.gauge("ponor_block_cache_bytes", lambda: self.held_bytes)
        telemetry.gauge("ponor_read_ahead_bytes", lambda: self._claimed_bytes)

    @property
    def held_bytes(self) -> int:
        """Cached blocks, claimed ones and those in flight."""
        return self._cached_bytes + self._pinned.held_bytes

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
            block = self._cached((key, entry.position))
            if block is not None:
                self._hits.add(1)
                found[entry.position] = block
                continue
            self._misses.add(1)
            fetch = self._fetches.get((key, entry.position))
            if fetch is None:
                missing.append(entry)
            else:
                waited[fetch] = None
        for run in adjacent_runs(missing, run_bytes_max=self._run_bytes_max):
            waited[self._start(key, run, is_granted=False)] = None
        # Shielded: a reader that gives up must not take the GETs of others with it.
        for blocks in await asyncio.gather(*(asyncio.shield(fetch) for fetch in waited)):
            found.update(blocks)
        return [found[entry.position] for entry in entries]

    def _cached(self, name: _BlockKey) -> DataBlock | None:
        block = self._blocks.get(name)
        if block is None:
            return self._claimed.get(name)
        self._blocks.move_to_end(name)
        return block

    def knows(self, key: str, entry: BlockEntry) -> bool:
        """Whether the block is here, or on its way: then no GET is made for it."""
        name = (key, entry.position)
        return name in self._blocks or name in self._claimed or name in self._fetches

    # Read-ahead

    @property
    def run_bytes_max(self) -> int:
        """The most bytes that one GET brings, unless a block is larger."""
        return self._run_bytes_max

    @property
    def claims_bytes_max(self) -> int:
        """Room for the claims of all readers."""
        return self._bytes_max // 2

    def claim(self, key: str, entries: Sequence[BlockEntry]) -> int:
        """Fetch missing blocks ahead of their reader, and keep them until `unclaim`.

        Returns how many of them, from the first on, are claimed; there is no room for the rest now. A claim is no
        promise: without room for its bytes, the first reader fetches the block.
        """
        missing: list[BlockEntry] = []
        taken = 0
        for entry in entries:
            name = (key, entry.position)
            if name not in self._claims:
                size_bytes = memory_bytes_of(entry)
                if self._claimed_bytes + size_bytes > self.claims_bytes_max:
                    break
                self._claimed_bytes += size_bytes
            self._claims[name] = self._claims.get(name, 0) + 1
            taken += 1
            if name in self._blocks:
                self._pin(name)
            elif name not in self._claimed and name not in self._fetches:
                missing.append(entry)
        for run in adjacent_runs(missing, run_bytes_max=self._run_bytes_max):
            if not self._pinned.try_acquire(run.fetch_memory_bytes):
                break
            self._start(key, run, is_granted=True)
        self._make_room()
        return taken

    def claim_read(self, key: str, block: DataBlock) -> bool:
        """Somebody who has just read this block will come for its rest; False when there is no room."""
        name = (key, block.entry.position)
        if name not in self._blocks and name not in self._claimed and name not in self._fetches:
            self._keep(name, block)  # it was evicted while the rest of the read arrived
        return self.claim(key, [block.entry]) == 1

    def _pin(self, name: _BlockKey) -> None:
        """Take a cached block out of eviction's reach; what is held in all stays the same."""
        block = self._blocks[name]
        self._drop(name)
        self._pinned.charge(block.memory_bytes)
        self._add_claimed(name, block)

    def unclaim(self, key: str, entry: BlockEntry) -> None:
        """The reader has come, or never will: from now on the block is one of many."""
        name = (key, entry.position)
        self._claims[name] -= 1
        if self._claims[name] > 0:
            return
        del self._claims[name]
        self._claimed_bytes -= memory_bytes_of(entry)
        if name in self._claimed:
            self._let_go(name)

    def _add_claimed(self, name: _BlockKey, block: DataBlock) -> None:
        self._claimed[name] = block
        self._claimed_here_bytes += block.memory_bytes

    def _let_go(self, name: _BlockKey) -> None:
        block = self._claimed.pop(name)
        self._claimed_here_bytes -= block.memory_bytes
        self._keep(name, block)
        self._pinned.release(block.memory_bytes)
        self._make_room()

    def _give_way(self, size_bytes: int) -> None:
        """A waiting read has no room, and nothing in flight will free any: claimed blocks lose their claim."""
        while self._claimed and not self._fits(size_bytes):
            self._let_go(next(iter(self._claimed)))
            self._given_up.add()

    def _fits(self, size_bytes: int) -> bool:
        held_bytes = self._pinned.held_bytes
        return held_bytes + size_bytes <= self._bytes_max or held_bytes > self._claimed_here_bytes

    def _in_flight_ended(self) -> None:
        while self._claimed and self._pinned.waiting and self._pinned.held_bytes == self._claimed_here_bytes:
            self._let_go(next(iter(self._claimed)))
            self._given_up.add()
        self._make_room()

    # Fetching

    def _start(self, key: str, run: BlockRun, *, is_granted: bool) -> _Fetch:
        fetch = asyncio.create_task(
            self._fetch(key, run, is_granted=is_granted), name=f"fetch {key} at {run.position}"
        )
        names = [(key, entry.position) for entry in run.entries]
        self._fetches.update(dict.fromkeys(names, fetch))

        def fetched(done: _Fetch) -> None:
            for name in names:
                del self._fetches[name]
            if not done.cancelled():
                done.exception()  # seen, even if every reader has given up meanwhile

        fetch.add_done_callback(fetched)
        return fetch

    async def _fetch(self, key: str, run: BlockRun, *, is_granted: bool) -> dict[int, DataBlock]:
        pinned_bytes = run.fetch_memory_bytes
        if not is_granted and not self._pinned.try_acquire(pinned_bytes):
            self._give_way(pinned_bytes)
            await self._pinned.acquire(pinned_bytes)
        try:
            self._make_room()
            blocks = await self._read_again_if_broken(key, run)
            for block in blocks:
                name = (key, block.entry.position)
                if name in self._claims:
                    self._add_claimed(name, block)
                    pinned_bytes -= block.memory_bytes  # stays pinned
        except BaseException:
            self._pinned.release(pinned_bytes)
            self._in_flight_ended()
            raise
        self._pinned.release(pinned_bytes)
        for block in blocks:
            if (name := (key, block.entry.position)) not in self._claimed:
                self._keep(name, block)
        self._in_flight_ended()
        return {block.entry.position: block for block in blocks}

    async def _read_again_if_broken(self, key: str, run: BlockRun) -> list[DataBlock]:
        for _ in range(READ_TRIES_MAX - 1):
            with suppress(ObjectCorruptError):
                return await self._read(key, run)
        return await self._read(key, run)

    async def _read(self, key: str, run: BlockRun) -> list[DataBlock]:
        data = await self._store.get(key, run.position, run.size_bytes)
        if len(run.entries) == 1:
            return [await self._turns.run(block_steps(key, run.entries[0], data))]
        return await self._cut(key, run.entries, data, run.position)

    async def _cut(
        self, key: str, entries: Sequence[BlockEntry], data: bytes, position: int
    ) -> list[DataBlock]:
        """The blocks of a run of bytes that begins at `position`, each proven."""
        view = memoryview(data)
        blocks: list[DataBlock] = []
        for entry in entries:
            start = entry.position - position
            # Each block gets bytes of its own: a view would keep the run in memory for as long as any block of it.
            own = bytes(view[start : start + entry.size_bytes])
            blocks.append(await self._turns.run(block_steps(key, entry, own)))
        return blocks

    async def keep_tail(self, opened: OpenedObject) -> None:
        """Keep the blocks that came with the opening of an object, if there is room for them; damaged ones are left to their readers."""
        key = opened.index.key
        entries = opened.index.blocks_behind(opened.tail_position)
        size_bytes = 2 * sum(map(memory_bytes_of, entries))
        if not entries or size_bytes > self._bytes_max or not self._pinned.try_acquire(size_bytes):
            return
        try:
            with suppress(ObjectCorruptError):
                for block in await self._cut(key, entries, opened.tail, opened.tail_position):
                    name = (key, block.entry.position)
                    if name not in self._fetches and name not in self._claimed and name not in self._blocks:
                        self._keep(name, block)
        finally:
            self._pinned.release(size_bytes)
            self._in_flight_ended()

    # Keeping

    def _keep(self, name: _BlockKey, block: DataBlock) -> None:
        assert name not in self._blocks, f"{name} was fetched twice at once"
        self._blocks[name] = block
        self._cached_bytes += block.memory_bytes

    def _make_room(self) -> None:
        while self._blocks and self._cached_bytes + self._pinned.held_bytes > self._bytes_max:
            self._drop(next(iter(self._blocks)))
            self._evictions.add(1)

    def _drop(self, name: _BlockKey) -> None:
        self._cached_bytes -= self._blocks.pop(name).memory_bytes

    def forget(self, key: str) -> None:
        """Drop the blocks of an object that has vanished from the store."""
        for name in [name for name in self._claimed if name[0] == key]:
            self._let_go(name)
        for name in [name for name in self._blocks if name[0] == key]:
            self._drop(name)

    async def close(self) -> None:
        """Stop fetching and drop everything."""
        fetches = list(dict.fromkeys(self._fetches.values()))
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)
        while self._claimed:
            self._let_go(next(iter(self._claimed)))
        self._blocks.clear()
        self._cached_bytes = 0
