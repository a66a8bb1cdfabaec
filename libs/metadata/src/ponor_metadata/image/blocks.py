"""Blocks: a sorted map of packed rows with copy-on-write snapshots.

A block has at most `BLOCK_ROWS_MAX` rows. It has a list or array of their keys, and the rows as exact tuples
in another list (`TupleBlocks`; Python's garbage collector tracks neither these tuples nor the lists) or as
bytes of fixed width (`StructBlocks`).

`freeze` returns a picture: it copies only the list of blocks. A block that belongs to a picture is copied
before its first change, so the picture does not change, and no step copies more than one block
(docs/design/metadata-image.md#snapshots).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from itertools import starmap
from operator import ge
from struct import Struct
from typing import Any, Final, Generic, TypeVar

from ponor_metadata.image.storage_native import untrack
from ponor_metadata.tables.schema import Values

K = TypeVar("K")

BLOCK_ROWS_MAX: Final = 512
"""Copying a block of 512 rows takes a few microseconds, and the list of blocks of a million rows has 2,000
entries.
"""
FEW: Final = 4
"""For at most this many rows, an iteration copies the rows instead of taking a picture."""
BLOCK_ROWS_MIN: Final = 128
"""A block with fewer rows is joined with a neighbour if both fit into three quarters of a block."""


class Block(ABC, Generic[K]):
    """A run of rows in key order.

    `generation`: how many pictures of the map had been taken when the block was created or copied.
    """

    __slots__ = ("generation", "keys")
    generation: int
    keys: MutableSequence[K]

    @abstractmethod
    def value(self, i: int) -> Values:
        """Return the i-th row."""

    @abstractmethod
    def replace(self, i: int, value: Values) -> None:
        """Replace the i-th row, under the same key."""

    @abstractmethod
    def insert(self, i: int, key: K, value: Values) -> None:
        """Insert a row before the i-th."""

    @abstractmethod
    def remove(self, i: int) -> None:
        """Remove the i-th row."""

    @abstractmethod
    def part(self, begin: int, end: int, generation: int) -> Block[K]:
        """Copy rows [begin, end), without spare capacity."""

    @abstractmethod
    def absorb(self, other: Block[K]) -> None:
        """Append the rows of the next block."""

    @abstractmethod
    def values(self) -> Iterable[Values]:
        """Return all rows in key order."""


class TupleBlock(Block[K]):
    """Rows as tuples."""

    __slots__ = ("_rows",)
    keys: list[K]

    def __init__(self, generation: int, keys: list[K], rows: list[Values]) -> None:
        """Create a block that uses the given lists without copying them."""
        self.generation = generation
        self.keys = keys
        self._rows = rows
        untrack(keys)
        untrack(rows)

    def value(self, i: int) -> Values:
        return self._rows[i]

    def replace(self, i: int, value: Values) -> None:
        self._rows[i] = value

    def insert(self, i: int, key: K, value: Values) -> None:
        self.keys.insert(i, key)
        self._rows.insert(i, value)

    def remove(self, i: int) -> None:
        del self.keys[i], self._rows[i]

    def part(self, begin: int, end: int, generation: int) -> TupleBlock[K]:
        return TupleBlock(generation, self.keys[begin:end], self._rows[begin:end])

    def absorb(self, other: Block[K]) -> None:
        self.keys.extend(other.keys)
        self._rows.extend(other.values())

    def values(self) -> Iterable[Values]:
        return self._rows


class StructBlock(Block[int]):
    """Rows as bytes of one layout, keys as int64."""

    __slots__ = ("_data", "_layout")
    keys: array[int]

    def __init__(self, generation: int, keys: array[int], data: bytearray, layout: Struct) -> None:
        self.generation = generation
        self.keys = keys
        self._data = data
        self._layout = layout

    def value(self, i: int) -> Values:
        return self._layout.unpack_from(self._data, i * self._layout.size)

    def replace(self, i: int, value: Values) -> None:
        self._layout.pack_into(self._data, i * self._layout.size, *value)

    def insert(self, i: int, key: int, value: Values) -> None:
        at = i * self._layout.size
        self.keys.insert(i, key)
        self._data[at:at] = self._layout.pack(*value)

    def remove(self, i: int) -> None:
        at = i * self._layout.size
        del self.keys[i], self._data[at : at + self._layout.size]

    def part(self, begin: int, end: int, generation: int) -> StructBlock:
        size = self._layout.size
        data = bytearray(memoryview(self._data)[begin * size : end * size])
        return StructBlock(generation, array("q", self.keys[begin:end]), data, self._layout)

    def absorb(self, other: Block[int]) -> None:
        assert isinstance(other, StructBlock)
        self.keys.extend(other.keys)
        self._data += other._data  # noqa: SLF001 -- of the same class

    def values(self) -> Iterable[Values]:
        return self._layout.iter_unpack(self._data)


class Picture(Generic[K]):
    """All rows of a map as of one moment."""

    __slots__ = ("_blocks", "_count")

    def __init__(self, blocks: list[Block[K]], count: int) -> None:
        self._blocks = blocks
        self._count = count

    def __len__(self) -> int:
        return self._count

    def items(self) -> Iterator[tuple[K, Values]]:
        """Iterate over keys and rows in key order."""
        for block in self._blocks:
            yield from zip(block.keys, block.values(), strict=True)

    def drain(self) -> Iterator[tuple[K, Values]]:
        """Iterate as `items` does, once, and release each block after it was read.

        If the picture holds the last references, freeing all blocks in one step would take a long time.
        """
        blocks = self._blocks
        blocks.reverse()
        while blocks:
            block = blocks.pop()
            yield from zip(block.keys, block.values(), strict=True)


class Blocks(ABC, Generic[K]):
    """A sorted map from keys to rows."""

    __slots__ = ("_blocks", "_count", "_firsts", "_generation")

    def __init__(self) -> None:
        self._blocks: list[Block[K]] = []
        # First key of every block. The type is Any, because the type variable cannot express that keys are
        # ordered.
        self._firsts: list[Any] = []
        self._count = 0
        self._generation = 0

    @abstractmethod
    def _block_of(self, keys: Sequence[K], values: Sequence[Values]) -> Block[K]: ...

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def get(self, key: K) -> Values | None:
        """Return the row, or None."""
        b = bisect_right(self._firsts, key) - 1
        if b < 0:
            return None
        block = self._blocks[b]
        keys: Any = block.keys
        i = bisect_left(keys, key)
        return block.value(i) if i < len(keys) and keys[i] == key else None

    def put(self, key: K, value: Values) -> Values | None:
        """Insert or replace a row; return the previous one, or None."""
        b = max(bisect_right(self._firsts, key) - 1, 0)
        if not self._blocks:
            self._insert_block(0, self._block_of((), ()), key)
        block = self._own(b)
        keys: Any = block.keys
        i = bisect_left(keys, key)
        if i < len(keys) and keys[i] == key:
            old = block.value(i)
            block.replace(i, value)
            return old
        if len(keys) >= BLOCK_ROWS_MAX:
            b, block, i = self._make_room(b, i, key)
        block.insert(i, key, value)
        if i == 0:
            self._firsts[b] = key
        self._count += 1
        return None

    def delete(self, key: K) -> Values:
        """Remove a row and return it.

        Raises:
            KeyError: there is no such row.
        """
        b = bisect_right(self._firsts, key) - 1
        if b < 0:
            raise KeyError(key)
        keys: Any = self._blocks[b].keys
        i = bisect_left(keys, key)
        if i == len(keys) or keys[i] != key:
            raise KeyError(key)
        block = self._own(b)
        old = block.value(i)
        block.remove(i)
        self._count -= 1
        if block.keys:
            if i == 0:
                self._firsts[b] = block.keys[0]
            if len(block.keys) < BLOCK_ROWS_MIN:
                self._join(b)
        elif len(self._blocks) > 1:  # keeps the last block: a map that fills again allocates nothing
            del self._blocks[b], self._firsts[b]
        return old

    def extend(self, keys: Sequence[K], values: Sequence[Values]) -> None:
        """Append rows to load a table. They must be in key order, with keys above all present keys.

        Raises:
            ValueError: the keys are not in order.
        """
        ordered: Any = keys
        last: Any = self._blocks[-1].keys[-1] if self._count else None
        if any(map(ge, ordered, ordered[1:])) or (self._count and ordered and ordered[0] <= last):
            raise ValueError("the rows are not sorted by key")
        begin = 0
        while begin < len(keys):
            room = BLOCK_ROWS_MAX - len(self._blocks[-1].keys) if self._blocks else 0
            end = min(begin + (room or BLOCK_ROWS_MAX), len(keys))
            block = self._block_of(keys[begin:end], values[begin:end])
            if room:
                if not self._count:
                    self._firsts[-1] = keys[begin]
                self._own(len(self._blocks) - 1).absorb(block)
            else:
                self._insert_block(len(self._blocks), block, keys[begin])
            self._count += end - begin
            begin = end

    def items(self) -> Iterator[tuple[K, Values]]:
        """Iterate over keys and rows in key order, as of this call; the map may change in the meantime."""
        if self._count <= FEW:
            # An example is the cluster row, which every change of a partition reads. A picture would cost
            # more than a copy.
            return iter(
                [pair for block in self._blocks for pair in zip(block.keys, block.values(), strict=True)]
            )
        return self.freeze().items()

    def values(self) -> Iterator[Values]:
        """Iterate over rows in key order, as of this call; the map may change in the meantime."""
        return (values for _, values in self.items())

    def scan(self) -> Iterator[Values]:
        """Iterate over rows in key order without a picture. The map must not change in the meantime."""
        for block in self._blocks:
            yield from block.values()

    def after(self, key: K | None, limit: int) -> list[tuple[K, Values]]:
        """Return at most `limit` keys and rows above `key` (None: from the first) in key order. Takes
        O(limit).
        """
        found: list[tuple[K, Values]] = []
        b = 0 if key is None else max(bisect_right(self._firsts, key) - 1, 0)
        while b < len(self._blocks) and len(found) < limit:
            block = self._blocks[b]
            keys: Any = block.keys
            i = 0 if key is None else bisect_right(keys, key)
            end = min(len(keys), i + limit - len(found))
            found.extend((keys[each], block.value(each)) for each in range(i, end))
            b += 1
        return found

    def block_sizes(self) -> list[int]:
        """Return the number of rows of each block."""
        return [len(block.keys) for block in self._blocks]

    def freeze(self) -> Picture[K]:
        """Take a picture of all rows. Copies 8 bytes per block."""
        self._generation += 1
        return Picture(self._blocks.copy(), self._count)

    def release(self) -> Iterator[None]:
        """Free all rows, one block per step. The map must not be used afterwards.

        One step for a million rows would take 100 ms.
        """
        self._firsts.clear()
        while self._blocks:
            self._blocks.pop()
            yield
        self._count = 0

    def _own(self, b: int) -> Block[K]:
        """Return a block that may be changed: a copy if a picture contains the block."""
        block = self._blocks[b]
        if block.generation != self._generation:
            block = self._blocks[b] = block.part(0, len(block.keys), self._generation)
        return block

    def _make_room(self, b: int, i: int, key: K) -> tuple[int, Block[K], int]:
        """Split a full block.

        If the new key is the highest, the last block stays full and a new block begins, so that insertions in
        key order fill all blocks.
        """
        block = self._blocks[b]
        if i == len(block.keys) and b == len(self._blocks) - 1:
            self._blocks[b] = block.part(0, len(block.keys), self._generation)
            self._insert_block(b + 1, self._block_of((), ()), key)
            return b + 1, self._blocks[b + 1], 0
        half = len(block.keys) // 2
        upper = block.part(half, len(block.keys), self._generation)
        self._blocks[b] = block.part(0, half, self._generation)
        self._insert_block(b + 1, upper, upper.keys[0])
        if i <= half:
            return b, self._blocks[b], i
        return b + 1, upper, i - half

    def _join(self, b: int) -> None:
        for left in (b - 1, b):
            if 0 <= left < len(self._blocks) - 1:
                rows = len(self._blocks[left].keys) + len(self._blocks[left + 1].keys)
                if rows <= BLOCK_ROWS_MAX * 3 // 4:
                    self._own(left).absorb(self._blocks[left + 1])
                    del self._blocks[left + 1], self._firsts[left + 1]
                    return

    def _insert_block(self, b: int, block: Block[K], first: K) -> None:
        self._blocks.insert(b, block)
        self._firsts.insert(b, first)


class TupleBlocks(Blocks[K]):
    """A map whose rows are exact tuples."""

    __slots__ = ()

    def _block_of(self, keys: Sequence[K], values: Sequence[Values]) -> Block[K]:
        return TupleBlock(self._generation, list(keys), list(values))


class StructBlocks(Blocks[int]):
    """A map whose rows are packed by a `Struct` layout."""

    __slots__ = ("_layout",)

    def __init__(self, layout: Struct) -> None:
        super().__init__()
        self._layout = layout

    def _block_of(self, keys: Sequence[int], values: Sequence[Values]) -> Block[int]:
        data = bytearray(b"".join(starmap(self._layout.pack, values)))
        return StructBlock(self._generation, array("q", keys), data, self._layout)
