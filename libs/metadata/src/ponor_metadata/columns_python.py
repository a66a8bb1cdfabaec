"""How joined values of a column are split, without compiled code: the twin of `columns_native`."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise


def split_blobs(data: bytes, lengths: array[int]) -> list[bytes]:
    """Byte strings of these lengths, one after the other."""
    return [data[begin:end] for begin, end in pairwise(accumulate(lengths, initial=0))]


def split_texts(data: bytes, lengths: array[int]) -> list[str]:
    """The same as strings.

    Raises:
        UnicodeDecodeError: one is not UTF-8.
    """
    return [text.decode() for text in split_blobs(data, lengths)]
