"""Columns: how the values of many rows of one kind stand in a snapshot's section. docs/formats/image.md says it byte by byte.

What lives here: the four kinds of columns, each written and read by operations on whole sequences, for a row of a million must not cost more
than a few hundred nanoseconds. One list of values has one encoding. Which table has which columns is `snapshot_layout`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final

try:
    from ponor_metadata.columns_native import split_blobs, split_texts
except ImportError:  # pragma: no cover - no C compiler was there when the member was installed
    from ponor_metadata.columns_python import split_blobs, split_texts

WORD_BYTES: Final = 8
VALUES_MAX: Final = 1 << 20
"""Values in one column of one section, those in lists included. A writer never comes near; a reader believes no larger count."""


class ColumnCorruptError(ValueError):
    """The bytes are no column; the message says which rule they break."""


class ColumnReader:
    """A place in a section's payload."""

    __slots__ = ("_data", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    @property
    def rest(self) -> int:
        """How many bytes are left."""
        return len(self._data) - self.position

    def take(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            ColumnCorruptError: there are not so many.
        """
        end = self.position + count
        if end > len(self._data):
            raise ColumnCorruptError(f"it ends inside of a column at byte {self.position}")
        data = self._data[self.position : end]
        self.position = end
        return data


class Column(ABC):
    """One kind of values. With no values there are no bytes."""

    __slots__ = ()

    def write(self, values: Sequence[Any], out: bytearray) -> None:
        """Append the values."""
        if values:
            self._write(values, out)

    def read(self, reader: ColumnReader, count: int) -> Sequence[Any]:
        """Take so many values.

        Raises:
            ColumnCorruptError: the bytes break the layout.
        """
        return self._read(reader, count) if count else ()

    @abstractmethod
    def _write(self, values: Sequence[Any], out: bytearray) -> None: ...

    @abstractmethod
    def _read(self, reader: ColumnReader, count: int) -> Sequence[Any]: ...


class Words(Column):
    """64-bit numbers, as eight planes of bytes: all lowest bytes, then all second ones, … A plane of one and the same byte is that byte."""

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

    def _read(self, reader: ColumnReader, count: int) -> array[int]:
        return self.read_some(reader, count)

    def read_some(self, reader: ColumnReader, count: int) -> array[int]:
        """Take so many numbers, at least one.

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


INTEGERS: Final = Words()
NATURALS: Final = Words(signed=False)


class Blobs(Column):
    """Byte strings: their lengths, then all of them in one."""

    __slots__ = ()

    def _write(self, values: Sequence[Any], out: bytearray) -> None:
        INTEGERS.write(list(map(len, values)), out)
        out += b"".join(values)

    def _read(self, reader: ColumnReader, count: int) -> list[bytes]:
        return split_blobs(*_read_joined(reader, count))


class Texts(Column):
    """Strings, of which many are the same: each once, in the order of their first appearance, then for each value which of them it is.

    `interned`: the same come again in other sections, and are to be one object. Not for a million different ones, each of which would cost a place in
    the interpreter's table of interned strings, whose growth by then takes 50 ms at once.
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
            raise ColumnCorruptError(f"a string beyond the {distinct} that are there")
        return list(map(texts.__getitem__, places))


class Lists(Column):
    """Flat tuples that repeat the given columns: how often they do, then the columns over all of them."""

    __slots__ = ("_columns",)

    def __init__(self, *columns: Column) -> None:
        self._columns: Final = columns

    def _write(self, values: Sequence[Any], out: bytearray) -> None:
        stride = len(self._columns)
        INTEGERS.write([len(flat) // stride for flat in values], out)
        flat = list(chain.from_iterable(values))
        for i, column in enumerate(self._columns):
            column.write(flat[i::stride], out)

    def _read(self, reader: ColumnReader, count: int) -> list[tuple[Any, ...]]:
        ends = _ends(INTEGERS.read(reader, count))
        columns = [column.read(reader, ends[-1]) for column in self._columns]
        stride = len(self._columns)
        flat = tuple(chain.from_iterable(zip(*columns, strict=True)))
        return [flat[begin * stride : end * stride] for begin, end in pairwise(ends)]


BLOBS: Final = Blobs()
TEXTS: Final = Texts()
UNIQUE_TEXTS: Final = Texts(interned=False)


def _read_joined(reader: ColumnReader, count: int) -> tuple[bytes, array[int]]:
    """So many values in one, and their lengths."""
    lengths = INTEGERS.read_some(reader, count)
    total = sum(lengths)
    if min(lengths) < 0 or total > reader.rest:
        raise ColumnCorruptError(f"it ends inside of a column at byte {reader.position}")
    return reader.take(total), lengths


def _ends(counts: Sequence[int]) -> list[int]:
    ends = list(accumulate(counts, initial=0))
    if min(counts) < 0 or ends[-1] > VALUES_MAX:
        raise ColumnCorruptError(f"a list of lists of {ends[-1]} values")
    return ends
