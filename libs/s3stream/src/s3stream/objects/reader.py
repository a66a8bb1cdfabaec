"""Opens an object in a store: fetches the tail, proves footer and index.

Blocks are fetched by whoever reads (`cache/block_cache.py`, `objects/inspect.py`) and proven by `objects/block.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ponor_runtime.object_store import ObjectStore

from s3stream.errors import ObjectCorruptError
from s3stream.objects.format import FOOTER_BYTES
from s3stream.objects.index import ObjectIndex, decode_footer, index_steps
from s3stream.objects.keys import parse_object_key
from s3stream.turns import in_turns

TAIL_GUESS_BYTES_MIN: Final = 64 * 1024
"""Room for a thousand blocks. Bytes of a request cost next to nothing, a second request costs as much as the first."""

READ_TRIES_MAX: Final = 4
"""How often bytes that do not match their checksum are fetched before the object is called corrupt: answers break off, and bits flip on the
way. Without a pause, because the store did answer."""

_TAIL_GUESS_BYTES_PER_MIB: Final = 512
_TAIL_GUESS_BYTES_MAX: Final = 1024 * 1024


def tail_guess_bytes(size_hint: int | None) -> int:
    """How much to fetch from the end of an object, so that index and footer are most likely in it.

    A mebibyte of data is two full blocks; the guess allows for eight, because blocks of small streams are not full.
    """
    if size_hint is None:
        return TAIL_GUESS_BYTES_MIN
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


async def open_object(store: ObjectStore, key: str, size_hint: int | None = None) -> OpenedObject:
    """Open an object: one GET if the guess holds, two otherwise. A large index is proven in turns with other work of the loop.

    Args:
        store: where the object lies.
        key: its key, which also tells its id.
        size_hint: its size in bytes as the metadata has it.

    Raises:
        ObjectNotFoundError: no such object.
        ObjectCorruptError: its end breaks the format, or its size is not the one in the metadata.
        ValueError: this is not the key of an object.
    """
    _, object_id = parse_object_key(key)
    tail, size_bytes = await store.get_tail(key, max(tail_guess_bytes(size_hint), FOOTER_BYTES))
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
