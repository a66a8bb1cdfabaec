"""Cache of data blocks, bounded by bytes. It evicts the least recently used block, and fetches each run of
adjacent blocks with one GET.

A block is charged before its GET is sent: the charge first evicts cached blocks, then waits for
room. Blocks that were read ahead (`claim`) are charged as well. They stay cached until their reader
uses them and take at most half of `bytes_max`. If a read finds no room, the cache makes the oldest
of them evictable. The cache does not count evicted blocks that a reader still holds; the reader must
bound them. `read_ahead` decides which blocks to read ahead.
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
"""The cache must have room for this many runs, so that several readers fit. A small cache uses shorter runs.
"""

_BlockKey: TypeAlias = tuple[str, int]
"""Object key and position. They always identify the same bytes, because objects are immutable."""
_Fetch: TypeAlias = "asyncio.Task[dict[int, DataBlock]]"


RUN_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Adjacent blocks that one ranged GET returns."""

    entries: tuple[BlockEntry, ...]

    @property
    def position(self) -> int:
        """Position of the run in its object."""
        return self.entries[0].position

    @property
    def size_bytes(self) -> int:
        """Length of the run."""
        return self.entries[-1].position + self.entries[-1].size_bytes - self.position

    @property
    def fetch_memory_bytes(self) -> int:
        """Memory needed to fetch the run: the size of its blocks. If there are several blocks, also the size
        of the response, from which they are copied.
        """
        answer_bytes = self.size_bytes if len(self.entries) > 1 else 0
        return sum(map(memory_bytes_of, self.entries)) + answer_bytes


def adjacent_runs(entries: Sequence[BlockEntry], *, run_bytes_max: int = RUN_BYTES_MAX) -> list[BlockRun]:
    """Group blocks of one object, in position order, into runs of adjacent blocks. A block larger than
    `run_bytes_max` is a run by itself.
    """
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

    `bytes_max` bounds cached, claimed and in-flight blocks together, including index arrays and
    overhead. A run of blocks larger than the whole bound is fetched when no other fetch is in
    flight, and is not cached.
    """

    def __init__(
        self, store: ObjectStore, *, bytes_max: int, telemetry: Telemetry, turns: Turns | None = None
    ) -> None:
        """Create an empty cache. `turns` limits the decoding work in one turn of the event loop;
        other components may share it.
        """
        self._store = store
        self._turns = Turns() if turns is None else turns
        self._bytes_max: Final = bytes_max
        self._run_bytes_max: Final = min(RUN_BYTES_MAX, bytes_max // RUNS_IN_FLIGHT)
        self._blocks: OrderedDict[_BlockKey, DataBlock] = OrderedDict()  # evictable blocks
        self._cached_bytes = 0
        self._fetches: dict[_BlockKey, _Fetch] = {}
        self._claims: dict[_BlockKey, int] = {}  # number of readers expected to use a block
        self._claimed: OrderedDict[_BlockKey, DataBlock] = OrderedDict()  # claimed and cached, oldest first
        self._claimed_here_bytes = 0
        self._claimed_bytes = 0  # bytes of all claims, including blocks in flight
        self._pinned = ByteBudget("block cache", bytes_max)  # blocks in flight, and claimed cached blocks
        self._hits = telemetry.counter("ponor_block_cache_reads_total", result="hit")
        self._misses = telemetry.counter("ponor_block_cache_reads_total", result="miss")
        self._evictions = telemetry.counter("ponor_block_cache_evictions_total")
        self._given_up = telemetry.counter("ponor_read_ahead_blocks_total", result="given_up")
        telemetry.gauge("ponor_block_cache_bytes", lambda: self.held_bytes)
        telemetry.gauge("ponor_read_ahead_bytes", lambda: self._claimed_bytes)

    @property
    def held_bytes(self) -> int:
        """Bytes of cached, claimed and in-flight blocks."""
        return self._cached_bytes + self._pinned.held_bytes

    async def blocks(self, key: str, entries: Sequence[BlockEntry]) -> list[DataBlock]:
        """Return blocks of one object in the order of `entries`. One GET fetches each run of
        adjacent missing blocks.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectCorruptError: a block did not match its index entry in any attempt.
            BudgetExceededError: too many readers wait for room; retriable.
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
        # Shielded, because other readers may wait for the same GETs when this reader is cancelled.
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
        """Whether the block is cached or in flight, so that no further GET is needed."""
        name = (key, entry.position)
        return name in self._blocks or name in self._claimed or name in self._fetches

    # Read-ahead

    @property
    def run_bytes_max(self) -> int:
        """Bytes of one GET, unless a single block is larger."""
        return self._run_bytes_max

    @property
    def claims_bytes_max(self) -> int:
        """Bytes that all claims together may take."""
        return self._bytes_max // 2

    def claim(self, key: str, entries: Sequence[BlockEntry]) -> int:
        """Fetch missing blocks before their reader needs them, and keep them until `unclaim`.

        Returns:
            How many of the blocks, counted from the first, are claimed; there is no room for the others now.
                A claim does not guarantee that the block is cached: without room for its bytes, the reader
                must fetch the block itself.
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
        """Claim a cached block for a reader that will read the rest of it later. Return False if there is
        no room.
        """
        name = (key, block.entry.position)
        if name not in self._blocks and name not in self._claimed and name not in self._fetches:
            self._keep(name, block)  # it was evicted while other blocks of the read arrived
        return self.claim(key, [block.entry]) == 1

    def _pin(self, name: _BlockKey) -> None:
        """Protect a cached block from eviction. The total of held bytes does not change."""
        block = self._blocks[name]
        self._drop(name)
        self._pinned.charge(block.memory_bytes)
        self._add_claimed(name, block)

    def unclaim(self, key: str, entry: BlockEntry) -> None:
        """Release the claim of one reader that used the block or stopped. The last release makes the
        block evictable.
        """
        name = (key, entry.position)
        self._claims[name] -= 1
        if self._claims[name] > 0:
            return
        del self._claims[name]
        self._claimed_bytes -= memory_bytes_of(entry)
        if name in self._claimed:
            self._unclaim(name)

    def _add_claimed(self, name: _BlockKey, block: DataBlock) -> None:
        self._claimed[name] = block
        self._claimed_here_bytes += block.memory_bytes

    def _unclaim(self, name: _BlockKey) -> None:
        block = self._claimed.pop(name)
        self._claimed_here_bytes -= block.memory_bytes
        self._keep(name, block)
        self._pinned.release(block.memory_bytes)
        self._make_room()

    def _unclaim_for(self, size_bytes: int) -> None:
        """Make claimed blocks evictable until the read fits, or until its bytes can be freed by the end of a
        fetch in flight.
        """
        while self._claimed and not self._fits(size_bytes):
            self._unclaim(next(iter(self._claimed)))
            self._given_up.add()

    def _fits(self, size_bytes: int) -> bool:
        held_bytes = self._pinned.held_bytes
        return held_bytes + size_bytes <= self._bytes_max or held_bytes > self._claimed_here_bytes

    def _in_flight_ended(self) -> None:
        while self._claimed and self._pinned.waiting and self._pinned.held_bytes == self._claimed_here_bytes:
            self._unclaim(next(iter(self._claimed)))
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
                done.exception()  # retrieves the exception even if every reader was cancelled

        fetch.add_done_callback(fetched)
        return fetch

    async def _fetch(self, key: str, run: BlockRun, *, is_granted: bool) -> dict[int, DataBlock]:
        pinned_bytes = run.fetch_memory_bytes
        if not is_granted and not self._pinned.try_acquire(pinned_bytes):
            self._unclaim_for(pinned_bytes)
            await self._pinned.acquire(pinned_bytes)
        try:
            self._make_room()
            blocks = await self._read_again_if_broken(key, run)
            for block in blocks:
                name = (key, block.entry.position)
                if name in self._claims:
                    self._add_claimed(name, block)
                    pinned_bytes -= block.memory_bytes  # stays claimed
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
        """Verify and return the blocks of a byte range that begins at `position`."""
        view = memoryview(data)
        blocks: list[DataBlock] = []
        for entry in entries:
            start = entry.position - position
            # Copied, because a view would keep the whole run in memory as long as any block of it is in use.
            own = bytes(view[start : start + entry.size_bytes])
            blocks.append(await self._turns.run(block_steps(key, entry, own)))
        return blocks

    async def keep_tail(self, opened: OpenedObject) -> None:
        """Cache the blocks in the tail that `open_object` fetched, if there is room. Stop at a damaged block
        without an error; a later read reports the damage.
        """
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
        assert name not in self._blocks, f"two fetches of {name} ran at the same time"
        self._blocks[name] = block
        self._cached_bytes += block.memory_bytes

    def _make_room(self) -> None:
        while self._blocks and self._cached_bytes + self._pinned.held_bytes > self._bytes_max:
            self._drop(next(iter(self._blocks)))
            self._evictions.add(1)

    def _drop(self, name: _BlockKey) -> None:
        self._cached_bytes -= self._blocks.pop(name).memory_bytes

    def forget(self, key: str) -> None:
        """Remove the blocks of an object that the store no longer has."""
        for name in [name for name in self._claimed if name[0] == key]:
            self._unclaim(name)
        for name in [name for name in self._blocks if name[0] == key]:
            self._drop(name)

    async def close(self) -> None:
        """Cancel all fetches and clear the cache."""
        fetches = list(dict.fromkeys(self._fetches.values()))
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)
        while self._claimed:
            self._unclaim(next(iter(self._claimed)))
        self._blocks.clear()
        self._cached_bytes = 0
