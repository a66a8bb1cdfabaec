"""Columns: each encodes one field of many rows in a section of a snapshot (docs/formats/image.md).

Each column writes and reads a whole sequence at once: an image may have a million rows, so a row may cost
only a few hundred nanoseconds. A list of values has exactly one encoding.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import accumulate, chain, pairwise
from typing import Any, Final

from ponor_metadata.tables.columns_native import split_blobs, split_texts

WORD_BYTES: Final = 8
VALUES_MAX: Final = 1 << 20
"""Limit of the values in one column of one section, including values in lists.

Writers stay far below this limit; readers refuse larger numbers.
"""


class ColumnCorruptError(ValueError):
    """The bytes are not a valid column; the message names the violated rule."""


class ColumnReader:
    """A position in a section's payload."""

    __slots__ = ("_data", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    @property
    def rest(self) -> int:
        """Number of bytes after the position."""
        return len(self._data) - self.position

    def take(self, count: int) -> bytes:
        """Return the next bytes.

        Raises:
            ColumnCorruptError: fewer than `count` bytes are left.
        """
        end = self.position + count
        if end > len(self._data):
            raise ColumnCorruptError(f"the data ends inside a column at byte {self.position}")
        data = self._data[self.position : end]
        self.position = end
        return data


class Column(ABC):
    """The encoding of a sequence of values. An empty sequence has no bytes."""

    __slots__ = ()

    def write(self, values: Sequence[Any], out: bytearray) -> None:
        """Append the values to `out`."""
        if values:
            self._write(values, out)

    def read(self, reader: ColumnReader, count: int) -> Sequence[Any]:
        """Read `count` values.

        Raises:
            ColumnCorruptError: the bytes break the layout.
        """
        return self._read(reader, count) if count else ()

    def weight(self, value: Any) -> int:
        """Size of one value in bytes or items, to be counted against the byte limit of a section."""
        return len(value)

    @abstractmethod
    def _write(self, values: Sequence[Any], out: bytearray) -> None: ...

    @abstractmethod
    def _read(self, reader: ColumnReader, count: int) -> Sequence[Any]: ...


class Words(Column):
    """64-bit numbers in eight planes: the lowest bytes of all numbers, then their second bytes, and so on.

    A plane whose bytes are all equal is stored as one byte.
    """

    __slots__ = ("_typecode",)

    def __init__(self, *, signed: bool = True) -> None:
        self._typecode: Final = "q" if signed else "Q"

    def _write(self, values: Sequence[Any], out: bytearray) -> None:
        words = array(self._typecode, values)
        if sys.byteorder == "big":
            words.byteswap()
        data = words.tobytes()
        varying = 0
        planes = []
        for plane in range(WORD_BYTES):
            part = data[plane::WORD_BYTES]
            if part.count(part[0]) == len(part):
                part = part[:1]
            else:
                varying |= 1 << plane
            planes.append(part)
        out.append(varying)
        out += b"".join(planes)

    def _read(self, reader: ColumnReader, count: int) -> Sequence[Any]:
        return self.read_some(reader, count)

    def read_some(self, reader: ColumnReader, count: int) -> array[int]:
        """Read `count` numbers, at least one.

        Raises:
            ColumnCorruptError: the bytes break the layout.
        """
        varying = reader.take(1)[0]
        data = bytearray(WORD_BYTES * count)
        for plane in range(WORD_BYTES):
            if varying >> plane & 1:
                data[plane::WORD_BYTES] = reader.take(count)
            else:
                byte = reader.take(1)
                if byte != b"\0":
                    data[plane::WORD_BYTES] = byte * count
        words = array(self._typecode)
        words.frombytes(data)
        if sys.byteorder == "big":
            words.byteswap()
        return words


class Enums(Words):
    """Members of an integer enumeration."""

    __slots__ = ("_members",)

    def __init__(self, members: type[IntEnum]) -> None:
        super().__init__()
        self._members: Final = {int(member): member for member in members}

    def _read(self, reader: ColumnReader, count: int) -> Sequence[Any]:
        try:
            return [self._members[number] for number in self.read_some(reader, count)]
        except KeyError as error:
            raise ColumnCorruptError(f"{error} is not among {list(self._members.values())}") from None


class Booleans(Words):
    """False and True, as 0 and 1."""

    __slots__ = ()

    def _read(self, reader: ColumnReader, count: int) -> Sequence[Any]:
        words = self.read_some(reader, count)
        if min(words) < 0 or max(words) > 1:
            raise ColumnCorruptError("a boolean that is neither 0 nor 1")
        return list(map(bool, words))


class Blobs(Column):
    """Byte strings: their lengths, then their bytes joined."""

    __slots__ = ()

    def _write(self, values: Sequence[Any], out: bytearray) -> None:
        INTEGERS.write(list(map(len, values)), out)
        out += b"".join(values)

    def _read(self, reader: ColumnReader, count: int) -> list[bytes]:
        return split_blobs(*_read_joined(reader, count))


class Texts(Column):
    """Strings with many duplicates: each distinct string once, in the order of first appearance, then for
    each value the position of its string.

    `interned`: equal strings of different sections become one object. Do not use this for millions of
    distinct strings: each takes a slot in the interpreter's table of interned strings, and growing a table of
    that size takes 50 ms in one step.
    """

    __slots__ = ("_interned",)

    def __init__(self, *, interned: bool = True) -> None:
        self._interned: Final = interned

    def _write(self, values: Sequence[Any], out: bytearray) -> None:
        places = {text: place for place, text in enumerate(dict.fromkeys(values))}
        INTEGERS.write((len(places),), out)
        BLOBS.write([text.encode() for text in places], out)
        INTEGERS.write(list(map(places.__getitem__, values)), out)

    def _read(self, reader: ColumnReader, count: int) -> list[str]:
        (distinct,) = INTEGERS.read(reader, 1)
        if not 1 <= distinct <= count:
            raise ColumnCorruptError(f"{distinct} different strings among {count}")
        try:
            texts = split_texts(*_read_joined(reader, distinct))
        except UnicodeDecodeError as error:
            raise ColumnCorruptError(f"a string is not UTF-8: {error}") from error
        if self._interned:
            texts = list(map(sys.intern, texts))
        places = INTEGERS.read(reader, count)
        if distinct == count and places == array("q", range(count)):
            return texts
        if min(places) < 0 or max(places) >= distinct:
            raise ColumnCorruptError(f"the index of a string is not below {distinct}, the number of strings")
        return list(map(texts.__getitem__, places))


class Lists(Column):
    """Flat tuples that repeat a group of fields: the number of groups in each tuple, then one column per
    field with the values of all groups.
    """

    __slots__ = ("_columns",)

    def __init__(self, *columns: Column) -> None:
        self._columns: Final = columns

    def _write(self, values: Sequence[Any], out: bytearray) -> None:
        stride = len(self._columns)
        INTEGERS.write([len(flat) // stride for flat in values], out)
        flat = list(chain.from_iterable(values))
        for i, column in enumerate(self._columns):
            column.write(flat[i::stride], out)

    def _read(self, reader: ColumnReader, count: int) -> Sequence[Any]:
        ends = _ends(INTEGERS.read(reader, count))
        columns = [column.read(reader, ends[-1]) for column in self._columns]
        stride = len(self._columns)
        flat = tuple(chain.from_iterable(zip(*columns, strict=True)))
        return [flat[begin * stride : end * stride] for begin, end in pairwise(ends)]


class Settings(Lists):
    """Mappings from names to values, as lists of names and values sorted by name."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(TEXTS, TEXTS)

    def weight(self, value: Mapping[str, str]) -> int:
        return sum(len(name) + len(setting) for name, setting in value.items())

    def _write(self, values: Sequence[Any], out: bytearray) -> None:
        super()._write([tuple(chain.from_iterable(sorted(each.items()))) for each in values], out)

    def _read(self, reader: ColumnReader, count: int) -> Sequence[Any]:
        return [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in super()._read(reader, count)]


INTEGERS: Final = Words()
NATURALS: Final = Words(signed=False)
BOOLEANS: Final = Booleans()
BLOBS: Final = Blobs()
TEXTS: Final = Texts()
UNIQUE_TEXTS: Final = Texts(interned=False)
SETTINGS: Final = Settings()


def _read_joined(reader: ColumnReader, count: int) -> tuple[bytes, array[int]]:
    """Read joined values; return their bytes and their lengths."""
    lengths = INTEGERS.read_some(reader, count)
    total = sum(lengths)
    if min(lengths) < 0 or total > reader.rest:
        raise ColumnCorruptError(f"the data ends inside a column at byte {reader.position}")
    return reader.take(total), lengths


def _ends(counts: Sequence[int]) -> list[int]:
    ends = list(accumulate(counts, initial=0))
    if min(counts) < 0 or ends[-1] > VALUES_MAX:
        raise ColumnCorruptError(
            f"a column has a list of negative length, or {ends[-1]} values in all, above {VALUES_MAX}"
        )
    return ends
