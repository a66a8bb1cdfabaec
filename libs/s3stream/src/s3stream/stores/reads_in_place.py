"""Reads into the caller's memory: an ability of some stores, which policies pass on.

Bytes that are only moved need no memory of their own, and copying gigabytes costs CPU. For a store without the ability,
the result of `get` is copied into place here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

from ponor_runtime.object_store import ObjectStore


class ReadsInPlace(Protocol):
    """An `ObjectStore` that reads into given memory."""

    @property
    def reads_in_place(self) -> bool:
        """Whether a read uses only the caller's memory; otherwise it costs as much as `get`."""
        ...

    async def get_into(self, key: str, start: int, places: Sequence[memoryview]) -> int:
        """Fill the places, one after the other, with the bytes from `start` on; returns how many there were, fewer at the end of the object only.

        Nothing is written to the places any more when this has returned, raised, or been cancelled; what they hold after a failure is undefined.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectStoreError: see the classes.
        """
        ...


def reads_in_place(store: ObjectStore) -> bool:
    """Whether a store has the ability now."""
    return _is_told_where(store) and store.reads_in_place


async def get_into(store: ObjectStore, key: str, start: int, places: Sequence[memoryview]) -> int:
    """`ReadsInPlace.get_into` of any store."""
    if _is_told_where(store):
        return await store.get_into(key, start, places)
    return put_in_place(await store.get(key, start, sum(map(len, places))), places)


def _is_told_where(store: ObjectStore) -> TypeGuard[ReadsInPlace]:
    # Not isinstance: a protocol check evaluates the properties of the store.
    return hasattr(store, "get_into")


def put_in_place(data: bytes, places: Sequence[memoryview]) -> int:
    """Copy bytes to their places; returns how many."""
    view = memoryview(data)
    at = 0
    for place in places:
        piece = view[at : at + len(place)]
        place[: len(piece)] = piece
        at += len(piece)
    return at
