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
"""Room for a thousand blocks. Bytes of a request cost next to nothing, a second request costs as much as the first."""

READ_TRIES_MAX: Final = 4
"""How often bytes that do not match their checksum are fetched before the object is called corrupt: answers break off, and bits flip on the
way. Without a pause, because the store did answer."""

_TAIL_SLACK_BYTES: Final = 4 * 1024
"""Footer, and a few more blocks than foreseen."""
_TAIL_GUESS_BYTES_PER_MIB: Final = 1536
_TAIL_GUESS_BYTES_MAX: Final = 1536 * 1024


def tail_guess_bytes(size_hint: int | None, range_count: int = 0) -> int:
    """How much to fetch from the end of an object, so that index and footer are most likely in it.

    Two neighbours among the blocks of a range are together larger than a full block, or they would be one: so an index has no more entries than the object has ranges and half
    blocks. What makes more are changes of the epoch, smaller blocks by a setting, and compactions that did not join blocks; then a second request is needed. Without the number of ranges the guess
    allows for 24 blocks a mebibyte.
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
    """What opening an object brought: its index, and the bytes from `tail_position` on, which often hold blocks too."""

    index: ObjectIndex
    tail_position: int
    tail: bytes


async def read_index(store: ObjectStore, key: str, size_hint: int | None = None) -> ObjectIndex:
    """The index alone; see `open_object`."""
    return (await open_object(store, key, size_hint)).index


async def open_object(
    store: ObjectStore, key: str, size_hint: int | None = None, range_count: int = 0
) -> OpenedObject:
    """Open an object: one GET if the guess holds, two otherwise. A large index is proven in turns with other work of the loop.

    Args:
        store: where the object lies.
        key: its key, which also tells its id.
        size_hint: its size in bytes as the metadata has it.
        range_count: ranges of streams in it, likewise; 0: not known.

    Raises:
        ObjectNotFoundError: no such object.
        ObjectCorruptError: its end breaks the format, or its size is not the one in the metadata.
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
