"""Opening of an object in a store: fetches the tail and verifies footer and index.

`cache/block_cache.py` and `objects/inspect.py` fetch blocks; `objects/block.py` verifies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ponor_runtime.object_store import ObjectStore
from ponor_runtime.turns import in_turns

from s3stream.errors import ObjectCorruptError
from s3stream.objects.format import BLOCK_BYTES_MAX, ENTRY_BYTES, FOOTER_BYTES
from s3stream.objects.index import ObjectIndex, decode_footer, index_steps
from s3stream.objects.keys import parse_object_key

TAIL_GUESS_BYTES_MIN: Final = 64 * 1024
"""Enough for the entries of a thousand blocks. Fetching extra bytes costs almost nothing, while a
second request costs as much as the first."""

READ_TRIES_MAX: Final = 4
"""Attempts before bytes with a wrong checksum count as corrupt, because responses can be truncated
or damaged in transit. There is no pause, because the store did answer."""

_TAIL_SLACK_BYTES: Final = 4 * 1024
"""Footer, and a few more blocks than expected."""
_TAIL_GUESS_BYTES_PER_MIB: Final = 1536
_TAIL_GUESS_BYTES_MAX: Final = 1536 * 1024


def tail_guess_bytes(size_hint: int | None, range_count: int = 0) -> int:
    """Return how many bytes to fetch from the end of an object so that they most likely include
    index and footer.

    Two adjacent blocks of a range are together larger than a full block, or they would have been joined. An
    index therefore has at most one entry per range plus two per `BLOCK_BYTES_MAX` bytes of the object. If
    epochs changed, a setting made blocks smaller, or a compaction did not join them, a second request may be
    needed. Without the number of ranges, the estimate is 24 blocks per mebibyte.
    """
    if size_hint is None:
        return TAIL_GUESS_BYTES_MIN
    if range_count:
        entries = range_count + 2 * size_hint // BLOCK_BYTES_MAX
        return max(1, min(max(entries * ENTRY_BYTES + _TAIL_SLACK_BYTES, TAIL_GUESS_BYTES_MIN), size_hint))
    guess = TAIL_GUESS_BYTES_MIN + (size_hint >> 20) * _TAIL_GUESS_BYTES_PER_MIB
    return max(1, min(guess, _TAIL_GUESS_BYTES_MAX, size_hint))


@dataclass(frozen=True, slots=True)
class OpenedObject:
    """Result of opening an object: its index, and the bytes from `tail_position` on, which often
    contain blocks too.
    """

    index: ObjectIndex
    tail_position: int
    tail: bytes


async def read_index(store: ObjectStore, key: str, size_hint: int | None = None) -> ObjectIndex:
    """Return only the index; see `open_object`."""
    return (await open_object(store, key, size_hint)).index


async def open_object(
    store: ObjectStore, key: str, size_hint: int | None = None, range_count: int = 0
) -> OpenedObject:
    """Open an object: usually one GET, two if the estimate was too small. A large index is verified
    in several turns of the event loop.

    Args:
        store: store of the object.
        key: key of the object.
        size_hint: its size in bytes according to the metadata.
        range_count: its number of stream ranges according to the metadata; 0: unknown.

    Raises:
        ObjectNotFoundError: no such object.
        ObjectCorruptError: its end breaks the format, or its size differs from the metadata.
        ValueError: this is not the key of an object.
    """
    _, object_id = parse_object_key(key)
    tail, size_bytes = await store.get_tail(key, max(tail_guess_bytes(size_hint, range_count), FOOTER_BYTES))
    if size_hint is not None and size_bytes != size_hint:
        raise ObjectCorruptError(
            f"{key}, position 0: object length: {size_bytes} bytes; the metadata has {size_hint}"
        )
    footer = decode_footer(key, object_id, tail, size_bytes)
    tail_position = size_bytes - len(tail)
    if footer.index_position >= tail_position:
        start = footer.index_position - tail_position
        encoded = bytes(memoryview(tail)[start : start + footer.index_bytes])
    else:
        encoded = await store.get(key, footer.index_position, footer.index_bytes)
    return OpenedObject(await in_turns(index_steps(key, footer, encoded)), tail_position, tail)
