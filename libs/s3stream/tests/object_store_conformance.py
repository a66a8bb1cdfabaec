"""Conformance checks for every object store: `CHECKS` contains functions of (store, prefix).

A check uses only keys below its prefix, so that tests may share stores. No key is a "directory" of
another (`a` and `a/1`), because S3 servers on file systems refuse that; object keys never are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TypeAlias

import pytest
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStore,
)
from s3stream.stores.reads_in_place import get_into

Check: TypeAlias = Callable[[ObjectStore, str], Awaitable[None]]
MIB = 1024 * 1024


async def listed(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    return [info async for info in store.list(prefix)]


async def a_put_is_read_back(store: ObjectStore, prefix: str) -> None:
    await store.put(f"{prefix}/84/ns/1", [b"abc", bytearray(b"def"), memoryview(b"..ghi..")[2:5]])
    assert await store.get(f"{prefix}/84/ns/1", 0, 9) == b"abcdefghi"


async def ranges_are_exact_and_end_with_the_object(store: ObjectStore, prefix: str) -> None:
    key = f"{prefix}/1"
    await store.put(key, [b"0123456789"])
    assert await store.get(key, 3, 4) == b"3456"
    assert await store.get(key, 9, 1) == b"9"
    assert await store.get(key, 8, 100) == b"89"
    assert await store.get(key, 10, 5) == b""
    assert await store.get(key, 1000, 5) == b""


async def reads_give_bytes_that_stay(store: ObjectStore, prefix: str) -> None:
    await store.put(f"{prefix}/1", [b"0123456789"])
    assert type(await store.get(f"{prefix}/1", 0, 10)) is bytes
    tail, _ = await store.get_tail(f"{prefix}/1", 10)
    assert type(tail) is bytes


async def reads_into_places_fill_them_one_after_the_other(store: ObjectStore, prefix: str) -> None:
    key = f"{prefix}/1"
    await store.put(key, [b"0123456789"])
    memory = memoryview(bytearray(b"." * 12))
    assert await get_into(store, key, 2, [memory[8:11], memory[0:0], memory[1:3]]) == 5
    assert bytes(memory) == b".56.....234."
    assert await get_into(store, key, 0, []) == 0


async def reads_into_places_end_with_the_object(store: ObjectStore, prefix: str) -> None:
    key = f"{prefix}/1"
    await store.put(key, [b"0123456789"])
    memory = memoryview(bytearray(b"." * 8))
    assert await get_into(store, key, 7, [memory[0:2], memory[2:8]]) == 3
    assert bytes(memory) == b"789....."
    assert await get_into(store, key, 10, [memory]) == 0
    assert await get_into(store, key, 1000, [memory]) == 0
    with pytest.raises(ObjectNotFoundError, match=f"{prefix}/none"):
        await get_into(store, f"{prefix}/none", 0, [memory])


async def large_reads_into_places_are_whole(store: ObjectStore, prefix: str) -> None:
    key = f"{prefix}/1"
    data = bytes(range(256)) * (12 * 1024)
    await store.put(key, [data])
    memory = memoryview(bytearray(len(data)))
    cuts = [0, 1, 70_000, MIB, 2 * MIB + 7, len(data)]
    places = [memory[a:b] for a, b in pairwise(cuts)]

    async def read(start: int) -> None:
        await get_into(store, key, start, [memory[start : start + MIB]])

    assert await get_into(store, key, 0, places) == len(data)
    assert memory == data
    memory[:] = bytes(len(data))
    await asyncio.gather(*(read(start) for start in range(0, len(data), MIB)))
    assert memory == data


async def a_tail_comes_with_the_size(store: ObjectStore, prefix: str) -> None:
    key = f"{prefix}/1"
    await store.put(key, [b"0123456789"])
    assert await store.get_tail(key, 3) == (b"789", 10)
    assert await store.get_tail(key, 10) == (b"0123456789", 10)
    assert await store.get_tail(key, 1000) == (b"0123456789", 10)


async def an_empty_object_is_an_object(store: ObjectStore, prefix: str) -> None:
    await store.put(f"{prefix}/1", [])
    assert await store.get(f"{prefix}/1", 0, 10) == b""
    assert await store.get_tail(f"{prefix}/1", 10) == (b"", 0)
    assert await listed(store, prefix) == [ObjectInfo(f"{prefix}/1", 0)]


async def an_absent_object_is_named(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(ObjectNotFoundError, match=f"{prefix}/none"):
        await store.get(f"{prefix}/none", 0, 10)
    with pytest.raises(ObjectNotFoundError, match=f"{prefix}/none"):
        await store.get_tail(f"{prefix}/none", 10)
    await store.put(f"{prefix}/a/b", [b"x"])
    with pytest.raises(ObjectNotFoundError):
        await store.get(f"{prefix}/a", 0, 10)


async def a_taken_key_is_refused_and_keeps_its_object(store: ObjectStore, prefix: str) -> None:
    await store.put(f"{prefix}/1", [b"first"])
    with pytest.raises(ObjectAlreadyExistsError, match=f"{prefix}/1"):
        await store.put(f"{prefix}/1", [b"second"])
    assert await store.get(f"{prefix}/1", 0, 10) == b"first"


async def of_racing_puts_exactly_one_wins(store: ObjectStore, prefix: str) -> None:
    contents = [bytes([number]) * 1000 for number in range(6)]
    outcomes = await asyncio.gather(
        *(store.put(f"{prefix}/1", [content]) for content in contents), return_exceptions=True
    )
    winners = [number for number, outcome in enumerate(outcomes) if outcome is None]
    assert len(winners) == 1, outcomes
    assert all(isinstance(outcome, ObjectAlreadyExistsError) for outcome in outcomes if outcome is not None)
    assert await store.get(f"{prefix}/1", 0, 1000) == contents[winners[0]]


async def deletion_takes_present_and_absent_keys(store: ObjectStore, prefix: str) -> None:
    keys = [f"{prefix}/84/{number}" for number in range(5)]
    for key in keys:
        await store.put(key, [b"x"])
    await store.delete([*keys[:3], f"{prefix}/84/none", f"{prefix}/none/1"])
    await store.delete(keys[:1])
    await store.delete([])
    assert [info.key for info in await listed(store, prefix)] == keys[3:]
    with pytest.raises(ObjectNotFoundError):
        await store.get(keys[0], 0, 1)


async def a_deleted_key_is_free_again(store: ObjectStore, prefix: str) -> None:
    await store.put(f"{prefix}/1", [b"first"])
    await store.delete([f"{prefix}/1"])
    await store.put(f"{prefix}/1", [b"second"])
    assert await store.get(f"{prefix}/1", 0, 10) == b"second"


async def a_listing_is_complete_and_has_one_order(store: ObjectStore, prefix: str) -> None:
    names = ["a/1", "a/10", "a/2", "a-b/1", "a.b/1", "b/c/d/e", "z"]
    for number, name in enumerate(names):
        await store.put(f"{prefix}/{name}", [b"x" * number])
    first = await listed(store, prefix)
    expected = [ObjectInfo(f"{prefix}/{name}", number) for number, name in enumerate(names)]
    assert sorted(first, key=lambda info: info.size_bytes) == expected
    assert await listed(store, prefix) == first


async def a_prefix_need_not_end_at_a_segment(store: ObjectStore, prefix: str) -> None:
    for name in ("84/ns/1", "84/ns/12", "84/ns-b/1", "85/ns/1"):
        await store.put(f"{prefix}/{name}", [b"x"])

    async def keys(below: str) -> list[str]:
        return sorted(
            info.key.removeprefix(f"{prefix}/") for info in await listed(store, f"{prefix}/{below}")
        )

    assert await keys("84/ns") == ["84/ns-b/1", "84/ns/1", "84/ns/12"]
    assert await keys("84/ns/") == ["84/ns/1", "84/ns/12"]
    assert await keys("84/ns/12") == ["84/ns/12"]
    assert await keys("9") == []


async def a_large_object_of_many_pieces_is_whole(store: ObjectStore, prefix: str) -> None:
    pieces = [bytes([number % 251]) * (40 if number % 2 else 300_000) for number in range(300)]
    whole = b"".join(pieces)
    assert len(whole) > 40 * MIB
    await store.put(f"{prefix}/1", pieces)
    assert await store.get(f"{prefix}/1", 0, len(whole)) == whole
    assert await store.get(f"{prefix}/1", 17 * MIB - 5, MIB) == whole[17 * MIB - 5 : 18 * MIB - 5]
    assert await store.get_tail(f"{prefix}/1", MIB) == (whole[-MIB:], len(whole))
    with pytest.raises(ObjectAlreadyExistsError):
        await store.put(f"{prefix}/1", pieces)


CHECKS: tuple[Check, ...] = (
    a_put_is_read_back,
    ranges_are_exact_and_end_with_the_object,
    reads_give_bytes_that_stay,
    reads_into_places_fill_them_one_after_the_other,
    reads_into_places_end_with_the_object,
    large_reads_into_places_are_whole,
    a_tail_comes_with_the_size,
    an_empty_object_is_an_object,
    an_absent_object_is_named,
    a_taken_key_is_refused_and_keeps_its_object,
    of_racing_puts_exactly_one_wins,
    deletion_takes_present_and_absent_keys,
    a_deleted_key_is_free_again,
    a_listing_is_complete_and_has_one_order,
    a_prefix_need_not_end_at_a_segment,
    a_large_object_of_many_pieces_is_whole,
)
