"""Conformance checks for every multipart store: `CHECKS` contains functions of (rig, prefix).

A plain module, like `object_store_conformance.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest
from ponor_runtime.object_store import (
    MultipartNotFoundError,
    MultipartStore,
    MultipartUpload,
    ObjectAlreadyExistsError,
    ObjectNotFoundError,
    ObjectStore,
)


@dataclass
class Rig:
    """One place as a store of whole objects and as a multipart store."""

    objects: ObjectStore
    parts: MultipartStore

    async def open_uploads(self, prefix: str) -> list[tuple[str, str]]:
        return sorted([(row.key, row.upload_id) async for row in self.parts.list_multiparts(prefix)])


Check: TypeAlias = Callable[[Rig, str], Awaitable[None]]


async def an_object_of_parts_is_their_bytes_in_order(rig: Rig, prefix: str) -> None:
    size = rig.parts.part_size_bytes_min
    upload = await rig.parts.create_multipart(f"{prefix}/1")
    second = await rig.parts.upload_part(upload, 2, [b"b" * size, memoryview(b"..b..")[2:3]])
    first = await rig.parts.upload_part(upload, 1, [b"a" * size])
    third = await rig.parts.upload_part(upload, 3, [b"c"])
    await rig.parts.complete_multipart(upload, [second, first, third])
    whole = b"a" * size + b"b" * (size + 1) + b"c"
    assert await rig.objects.get(f"{prefix}/1", 0, 4 * size) == whole
    assert await rig.objects.get_tail(f"{prefix}/1", 3) == (whole[-3:], len(whole))
    assert await rig.open_uploads(prefix) == []


async def nobody_sees_an_object_before_it_is_complete(rig: Rig, prefix: str) -> None:
    upload = await rig.parts.create_multipart(f"{prefix}/1")
    part = await rig.parts.upload_part(upload, 1, [b"a"])
    with pytest.raises(ObjectNotFoundError):
        await rig.objects.get(f"{prefix}/1", 0, 1)
    assert [info async for info in rig.objects.list(prefix)] == []
    await rig.parts.complete_multipart(upload, [part])
    assert await rig.objects.get(f"{prefix}/1", 0, 1) == b"a"


async def a_part_that_is_uploaded_again_is_replaced(rig: Rig, prefix: str) -> None:
    upload = await rig.parts.create_multipart(f"{prefix}/1")
    await rig.parts.upload_part(upload, 1, [b"first"])
    again = await rig.parts.upload_part(upload, 1, [b"second"])
    await rig.parts.complete_multipart(upload, [again])
    assert await rig.objects.get(f"{prefix}/1", 0, 10) == b"second"


async def parts_are_copied_from_objects(rig: Rig, prefix: str) -> None:
    size = rig.parts.part_size_bytes_min
    source = bytes(range(256)) * (2 * size // 256 + 1)
    await rig.objects.put(f"{prefix}/source", [source])
    upload = await rig.parts.create_multipart(f"{prefix}/1")
    parts = [
        await rig.parts.upload_part_copy(upload, 1, f"{prefix}/source", 7, size),
        await rig.parts.upload_part(upload, 2, [b"end"]),
    ]
    await rig.parts.complete_multipart(upload, parts)
    assert await rig.objects.get(f"{prefix}/1", 0, 4 * size) == source[7 : 7 + size] + b"end"
    assert parts[0].size_bytes == size


async def a_copy_of_nothing_is_refused(rig: Rig, prefix: str) -> None:
    upload = await rig.parts.create_multipart(f"{prefix}/1")
    with pytest.raises(ObjectNotFoundError):
        await rig.parts.upload_part_copy(upload, 1, f"{prefix}/none", 0, 10)
    await rig.parts.abort_multipart(upload)


async def a_taken_key_keeps_its_object(rig: Rig, prefix: str) -> None:
    upload = await rig.parts.create_multipart(f"{prefix}/1")
    part = await rig.parts.upload_part(upload, 1, [b"late"])
    await rig.objects.put(f"{prefix}/1", [b"first"])
    with pytest.raises(ObjectAlreadyExistsError, match=f"{prefix}/1"):
        await rig.parts.complete_multipart(upload, [part])
    assert await rig.objects.get(f"{prefix}/1", 0, 10) == b"first"
    await rig.parts.abort_multipart(upload)
    assert await rig.open_uploads(prefix) == []


async def open_uploads_are_listed_and_aborted(rig: Rig, prefix: str) -> None:
    uploads = [await rig.parts.create_multipart(f"{prefix}/{number}/x") for number in (1, 2, 12)]
    await rig.parts.upload_part(uploads[0], 1, [b"a"])
    rows = [row async for row in rig.parts.list_multiparts(f"{prefix}/1")]
    assert sorted((row.key, row.upload_id) for row in rows) == sorted(
        (upload.key, upload.upload_id) for upload in (uploads[0], uploads[2])
    )
    assert all(1_600_000_000_000 < row.begun_at_ms < 1 << 43 for row in rows)
    for upload in uploads:
        await rig.parts.abort_multipart(upload)
        await rig.parts.abort_multipart(upload)
    assert await rig.open_uploads(prefix) == []
    assert [info async for info in rig.objects.list(prefix)] == []


async def an_upload_that_is_over_takes_nothing(rig: Rig, prefix: str) -> None:
    upload = await rig.parts.create_multipart(f"{prefix}/1")
    part = await rig.parts.upload_part(upload, 1, [b"a"])
    await rig.parts.abort_multipart(upload)
    with pytest.raises(MultipartNotFoundError):
        await rig.parts.upload_part(upload, 1, [b"a"])
    with pytest.raises(MultipartNotFoundError):
        await rig.parts.complete_multipart(upload, [part])


async def two_uploads_of_one_key_do_not_mix(rig: Rig, prefix: str) -> None:
    one = await rig.parts.create_multipart(f"{prefix}/1")
    two = await rig.parts.create_multipart(f"{prefix}/1")
    part_of_one = await rig.parts.upload_part(one, 1, [b"one"])
    part_of_two = await rig.parts.upload_part(two, 1, [b"two"])
    await rig.parts.complete_multipart(two, [part_of_two])
    with pytest.raises(ObjectAlreadyExistsError):
        await rig.parts.complete_multipart(one, [part_of_one])
    await rig.parts.abort_multipart(one)
    assert await rig.objects.get(f"{prefix}/1", 0, 10) == b"two"


async def a_key_that_is_none_is_refused(rig: Rig, prefix: str) -> None:
    with pytest.raises(ValueError, match="object store key"):
        await rig.parts.create_multipart(f"{prefix}/../x")
    with pytest.raises(ValueError, match="object store key"):
        await rig.parts.abort_multipart(MultipartUpload("a b", "1"))


CHECKS: tuple[Check, ...] = (
    an_object_of_parts_is_their_bytes_in_order,
    nobody_sees_an_object_before_it_is_complete,
    a_part_that_is_uploaded_again_is_replaced,
    parts_are_copied_from_objects,
    a_copy_of_nothing_is_refused,
    a_taken_key_keeps_its_object,
    open_uploads_are_listed_and_aborted,
    an_upload_that_is_over_takes_nothing,
    two_uploads_of_one_key_do_not_mix,
    a_key_that_is_none_is_refused,
)
