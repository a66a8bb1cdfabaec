"""Conformance scenarios for `Disk`; they run on the real disk and on the simulated one.

Each scenario is given a disk and an empty directory on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import PurePath

import pytest
from ponor_runtime.disk import SECTOR_BYTES, Buffer, Disk

Scenario = Callable[[Disk, PurePath], Awaitable[None]]


async def bytes_written_are_read_back_at_any_position(disk: Disk, root: PurePath) -> None:
    file = await disk.open(root / "f", create=True)
    await file.write(0, [b"abc", bytearray(b"def"), memoryview(b"ghi")])
    await file.write(4, [b"XY"])
    assert await file.size() == 9
    assert await file.read(0, 100) == b"abcdXYghi"
    assert await file.read(3, 2) == b"dX"
    assert await file.read(9, 10) == b""
    assert await file.read(50, 10) == b""
    await file.close()


async def a_write_behind_the_end_leaves_zeros_between(disk: Disk, root: PurePath) -> None:
    file = await disk.open(root / "f", create=True)
    await file.write_sync(SECTOR_BYTES, [b"x"])
    assert await file.size() == SECTOR_BYTES + 1
    assert await file.read(0, SECTOR_BYTES) == bytes(SECTOR_BYTES)
    await file.close()


async def many_buffers_are_one_write(disk: Disk, root: PurePath) -> None:
    pieces = [bytes([number % 251]) * (number % 7) for number in range(5000)]
    file = await disk.open(root / "f", create=True)
    await file.write_sync(0, pieces)
    assert await file.read(0, 1 << 20) == b"".join(pieces)
    await file.write_sync(0, [])
    assert await file.size() == sum(map(len, pieces))
    await file.close()


async def an_uncached_file_is_like_any_other(disk: Disk, root: PurePath) -> None:
    """Sector-aligned and unaligned writes, small and large, at and across the end: the same bytes as with the
    cache."""
    file = await disk.open(root / "f", create=True, uncached=True)
    expected = bytearray()
    writes: list[tuple[int, list[Buffer]]] = [
        (0, [b"\1" * SECTOR_BYTES]),
        (SECTOR_BYTES, [b"\2" * 5_000_000, b"", b"\3" * 7]),
        (3, [b"unaligned"]),
        (4 * SECTOR_BYTES, [bytes([n % 251]) * (n % 7) for n in range(3_000)]),
        (8 * SECTOR_BYTES, [b"\4" * (SECTOR_BYTES * 3), bytearray(b"\5" * SECTOR_BYTES)]),
        (10_000 * SECTOR_BYTES, [memoryview(b"\6" * 100)]),
        (10_000 * SECTOR_BYTES, [b"\7" * 3, b"\7" * 97]),
    ]
    for number, (position, buffers) in enumerate(writes):
        data = b"".join(buffers)
        expected.extend(bytes(max(position + len(data) - len(expected), 0)))
        expected[position : position + len(data)] = data
        await (file.write if number % 3 == 0 else file.write_sync)(position, buffers)
        assert await file.size() == len(expected)
        assert await file.read(0, len(expected) + 1) == bytes(expected)
    await file.sync()
    await file.close()
    again = await disk.open(root / "f")
    assert await again.read(0, len(expected) + 1) == bytes(expected)
    await again.close()


async def a_synced_write_can_be_told_without_a_task(disk: Disk, root: PurePath) -> None:
    file = await disk.open(root / "f", create=True)
    told: list[tuple[int, BaseException | None]] = []
    everything = asyncio.Event()

    def tell(number: int, error: BaseException | None) -> None:
        told.append((number, error))
        if len(told) == 20:
            everything.set()

    for number in range(20):
        file.write_sync_then(number, [b"%c" % (65 + number)], partial(tell, number))
        assert len(told) <= number, "callback ran within the call"
    await everything.wait()
    assert told == [(number, None) for number in range(20)], "callbacks out of call order"
    assert await file.read(0, 100) == bytes(range(65, 85))
    await file.close()


async def operations_on_a_file_run_in_the_order_called(disk: Disk, root: PurePath) -> None:
    file = await disk.open(root / "f", create=True)
    writes = [asyncio.ensure_future(file.write(0, [bytes([number])])) for number in range(50)]
    # Tasks start in any order. A read called after all of them have started sees the last write.
    await asyncio.gather(*writes)
    await file.write(0, [b"first"])
    later = file.write(0, [b"later"])
    await later
    assert await file.read(0, 5) == b"later"
    await file.close()


async def create_refuses_a_name_that_is_taken(disk: Disk, root: PurePath) -> None:
    file = await disk.open(root / "f", create=True)
    await file.close()
    with pytest.raises(FileExistsError):
        await disk.open(root / "f", create=True)


async def what_is_missing_is_named(disk: Disk, root: PurePath) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        await disk.open(root / "missing")
    with pytest.raises(FileNotFoundError, match="missing"):
        await disk.open(root / "missing" / "f", create=True)
    with pytest.raises(FileNotFoundError):
        await disk.remove(root / "missing")
    with pytest.raises(FileNotFoundError):
        await disk.rename(root / "missing", root / "other")
    with pytest.raises(FileNotFoundError):
        await disk.list(root / "missing")
    assert not await disk.exists(root / "missing")


async def directories_are_made_with_their_parents(disk: Disk, root: PurePath) -> None:
    deep = root / "a" / "b" / "c"
    await disk.make_directories(deep)
    await disk.make_directories(deep)
    assert await disk.exists(deep)
    assert await disk.list(root / "a") == ["b"]
    file = await disk.open(root / "f", create=True)
    await file.close()
    with pytest.raises(OSError, match="f"):
        await disk.make_directories(root / "f" / "below")


async def names_are_listed_in_order(disk: Disk, root: PurePath) -> None:
    for name in ("b", "a", "c"):
        await (await disk.open(root / name, create=True)).close()
    await disk.make_directories(root / "aa")
    assert await disk.list(root) == ["a", "aa", "b", "c"]
    await disk.remove(root / "b")
    assert await disk.list(root) == ["a", "aa", "c"]


async def rename_replaces_what_had_the_name(disk: Disk, root: PurePath) -> None:
    for name in ("old", "new"):
        file = await disk.open(root / name, create=True)
        await file.write(0, [name.encode()])
        await file.close()
    await disk.rename(root / "new", root / "old")
    await disk.sync_directory(root)
    assert await disk.list(root) == ["old"]
    file = await disk.open(root / "old")
    assert await file.read(0, 10) == b"new"
    await file.close()


async def link_gives_a_second_name_and_never_replaces(disk: Disk, root: PurePath) -> None:
    file = await disk.open(root / "one", create=True)
    await file.write(0, [b"same"])
    await file.close()
    await disk.link(root / "one", root / "two")
    with pytest.raises(FileExistsError):
        await disk.link(root / "one", root / "two")
    await disk.remove(root / "one")
    file = await disk.open(root / "two")
    assert await file.read(0, 10) == b"same"
    await file.close()


async def an_open_file_outlives_its_name(disk: Disk, root: PurePath) -> None:
    file = await disk.open(root / "f", create=True)
    await file.write_sync(0, [b"still there"])
    await disk.remove(root / "f")
    assert not await disk.exists(root / "f")
    assert await file.read(0, 100) == b"still there"
    await file.close()


async def a_locked_directory_is_refused_until_released(disk: Disk, root: PurePath) -> None:
    lock = disk.lock(root)
    with pytest.raises(BlockingIOError, match=root.name):
        disk.lock(root)
    lock.release()
    lock.release()
    disk.lock(root).release()


async def a_closed_file_refuses_work_and_closes_twice(disk: Disk, root: PurePath) -> None:
    file = await disk.open(root / "f", create=True)
    await file.close()
    await file.close()
    with pytest.raises(ValueError, match="closed"):
        await file.read(0, 1)


async def a_cancelled_caller_leaves_the_file_usable(disk: Disk, root: PurePath) -> None:
    file = await disk.open(root / "f", create=True)
    for number in range(20):
        task = asyncio.ensure_future(file.write_sync(0, [bytes([number]) * 4096]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await file.write_sync(0, [b"end"])
    assert await file.read(0, 3) == b"end"
    await file.close()


SCENARIOS: list[Scenario] = [
    bytes_written_are_read_back_at_any_position,
    a_write_behind_the_end_leaves_zeros_between,
    many_buffers_are_one_write,
    an_uncached_file_is_like_any_other,
    a_synced_write_can_be_told_without_a_task,
    operations_on_a_file_run_in_the_order_called,
    create_refuses_a_name_that_is_taken,
    what_is_missing_is_named,
    directories_are_made_with_their_parents,
    names_are_listed_in_order,
    rename_replaces_what_had_the_name,
    link_gives_a_second_name_and_never_replaces,
    an_open_file_outlives_its_name,
    a_locked_directory_is_refused_until_released,
    a_closed_file_refuses_work_and_closes_twice,
    a_cancelled_caller_leaves_the_file_usable,
]
