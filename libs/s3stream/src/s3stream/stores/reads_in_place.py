"""Reads into the caller's memory: an optional capability of stores, which policies pass on.

A compaction only moves bytes, so it needs no separate memory for them, and copying gigabytes costs
CPU. For a store without the capability, this module copies the result of `get` into place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

from ponor_runtime.object_store import ObjectStore


class ReadsInPlace(Protocol):
    """An `ObjectStore` that reads into given memory."""

    @property
    def reads_in_place(self) -> bool:
        """Whether a read uses only the caller's memory. Otherwise it costs as much as `get`."""
        ...

    async def get_into(self, key: str, start: int, places: Sequence[memoryview]) -> int:
        """Fill the places in order with the bytes from `start` on; return the number of bytes,
        which is smaller only at the end of the object.

        After this call has returned, raised or been cancelled, nothing is written to the places
        anymore. Their content after a failure is undefined.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectStoreError: the store failed.
        """
        ...


def reads_in_place(store: ObjectStore) -> bool:
    """Whether a store has the capability now."""
    return _supports_in_place(store) and store.reads_in_place


async def get_into(store: ObjectStore, key: str, start: int, places: Sequence[memoryview]) -> int:
    """`ReadsInPlace.get_into` for any store."""
    if _supports_in_place(store):
        return await store.get_into(key, start, places)
    return put_in_place(await store.get(key, start, sum(map(len, places))), places)


def _supports_in_place(store: ObjectStore) -> TypeGuard[ReadsInPlace]:
    # Not isinstance: a protocol check evaluates the properties of the store.
    return hasattr(store, "get_into")


def put_in_place(data: bytes, places: Sequence[memoryview]) -> int:
    """Copy bytes to their places; return their number."""
    view = memoryview(data)
    at = 0
    for place in places:
        piece = view[at : at + len(place)]
        place[: len(piece)] = piece
        at += len(piece)
    return at
