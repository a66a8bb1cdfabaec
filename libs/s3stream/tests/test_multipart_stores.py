"""Multipart stores: conformance, and their retries, metering and limits."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ponor_runtime.object_store import (
    MultipartUpload,
    ObjectAlreadyExistsError,
    ObjectStoreUnavailableError,
    UploadedPart,
)
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from s3stream.stores.directory import DirectoryObjectStore
from s3stream.stores.directory_multipart import DirectoryMultipartStore
from s3stream.stores.open_store import open_stores, wrap_multipart_store

from libs.s3stream.tests import multipart_conformance as conformance
from libs.s3stream.tests.memory_multipart import MemoryMultipartStore
from libs.s3stream.tests.store_rig import Failure, InstantClock, MemoryObjectStore, MiddleRandomness


def runtime_of(telemetry: Telemetry) -> Runtime:
    return Runtime(
        clock=InstantClock(),
        randomness=MiddleRandomness(),
        disk=SystemDisk(),
        network=None,  # type: ignore[arg-type]
        telemetry=telemetry,
    )


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("wrapped", [False, True], ids=["memory", "wrapped"])
async def test_conformance_in_memory(check: conformance.Check, wrapped: bool) -> None:
    objects = MemoryObjectStore()
    parts = MemoryMultipartStore(objects)
    runtime = runtime_of(Telemetry())
    rig = conformance.Rig(
        objects, wrap_multipart_store(parts, objects, runtime=runtime) if wrapped else parts
    )
    await check(rig, "p")


class TestDirectory:
    @pytest.fixture
    async def rig(self, tmp_path: Path) -> AsyncIterator[conformance.Rig]:
        disk = SystemDisk()
        objects = await DirectoryObjectStore.open(disk, tmp_path)
        parts = await DirectoryMultipartStore.open(
            disk, tmp_path, clock=SystemClock(), randomness=SystemRandomness()
        )
        yield conformance.Rig(objects, parts)
        await parts.close()
        await objects.close()
        disk.close()

    @pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
    async def test_conformance(self, check: conformance.Check, rig: conformance.Rig, tmp_path: Path) -> None:
        await check(rig, "p")
        for upload in await rig.open_uploads(""):
            await rig.parts.abort_multipart(MultipartUpload(*upload))
        assert list((tmp_path / "multiparts").iterdir()) == [], "no file is left behind"

    async def test_an_upload_outlives_its_process(self, rig: conformance.Rig, tmp_path: Path) -> None:
        upload = await rig.parts.create_multipart("84/ns/1")
        part = await rig.parts.upload_part(upload, 1, [b"a"])
        disk = SystemDisk()
        again = await DirectoryMultipartStore.open(
            disk, tmp_path, clock=SystemClock(), randomness=SystemRandomness()
        )
        await again.complete_multipart(upload, [part])
        assert await rig.objects.get("84/ns/1", 0, 10) == b"a"
        await again.close()
        disk.close()


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    uploads=st.lists(st.tuples(st.integers(1, 5), st.sampled_from([1, 5_000, 70_000, 140_000])), min_size=1),
    left_out=st.sets(st.integers(1, 5)),
)
async def test_parts_of_a_directory_are_in_order_wherever_they_were_written(
    uploads: list[tuple[int, int]], left_out: set[int], tmp_path: Path
) -> None:
    disk = SystemDisk()
    objects = await DirectoryObjectStore.open(disk, tmp_path)
    store = await DirectoryMultipartStore.open(
        disk, tmp_path, clock=SystemClock(), randomness=SystemRandomness()
    )
    upload = await store.create_multipart(f"p/{uuid.uuid4().hex}")
    newest: dict[int, tuple[bytes, UploadedPart]] = {}
    for turn, (number, size_bytes) in enumerate(uploads):
        data = bytes([turn % 251]) * size_bytes
        newest[number] = data, await store.upload_part(upload, number, [data])
    chosen = [newest[number] for number in sorted(newest) if number not in left_out] or [*newest.values()][:1]
    await store.complete_multipart(upload, [part for _, part in reversed(chosen)])
    whole = b"".join(data for data, _ in chosen)
    assert await objects.get(upload.key, 0, len(whole) + 1) == whole
    assert list((tmp_path / "multiparts").iterdir()) == []
    await store.close()
    await objects.close()
    disk.close()


async def test_a_url_opens_both_stores_of_one_place(tmp_path: Path) -> None:
    telemetry = Telemetry()
    runtime = runtime_of(telemetry)
    url = f"file://{tmp_path}/store"
    objects, parts = await open_stores(url, runtime=runtime, environment={})
    await conformance.an_object_of_parts_is_their_bytes_in_order(conformance.Rig(objects, parts), "p")
    counted = dict(telemetry.counters("ponor_object_store_requests_total"))
    assert counted["multipart_part", "put"] == 3
    assert counted["multipart_complete", "put"] == 1
    await parts.close()
    await objects.close()


class TestRetries:
    async def test_every_call_is_retried(self) -> None:
        objects = MemoryObjectStore()
        raw = MemoryMultipartStore(objects)
        telemetry = Telemetry()
        parts = wrap_multipart_store(raw, objects, runtime=runtime_of(telemetry))
        await objects.put("source", [b"source"])
        for op in ("create", "part", "copy", "complete", "abort"):
            raw.fail(op, Failure(), Failure())
        upload = await parts.create_multipart("1")
        done = [
            await parts.upload_part(upload, 1, [b"a"]),
            await parts.upload_part_copy(upload, 2, "source", 0, 6),
        ]
        await parts.complete_multipart(upload, done)
        await parts.abort_multipart(upload)
        assert objects.objects["1"] == b"asource"
        retries = dict(telemetry.counters("ponor_object_store_retries_total"))
        assert {number for (name,), number in retries.items() if name != "multipart_list"} == {2}

    async def test_a_completion_with_a_lost_answer_is_recognised_by_the_size(self) -> None:
        objects = MemoryObjectStore()
        raw = MemoryMultipartStore(objects)
        parts = wrap_multipart_store(raw, objects, runtime=runtime_of(Telemetry()))
        upload = await parts.create_multipart("1")
        part = await parts.upload_part(upload, 1, [b"abc"])
        raw.fail("complete", Failure(applied=True))
        await parts.complete_multipart(upload, [part])
        assert objects.objects["1"] == b"abc"

    async def test_a_key_taken_by_another_writer_is_an_error(self) -> None:
        objects = MemoryObjectStore()
        raw = MemoryMultipartStore(objects)
        parts = wrap_multipart_store(raw, objects, runtime=runtime_of(Telemetry()))
        upload = await parts.create_multipart("1")
        part = await parts.upload_part(upload, 1, [b"abc"])
        await objects.put("1", [b"foreign"])
        raw.fail("complete", Failure())
        with pytest.raises(ObjectAlreadyExistsError):
            await parts.complete_multipart(upload, [part])

    async def test_retries_are_bounded(self) -> None:
        objects = MemoryObjectStore()
        raw = MemoryMultipartStore(objects)
        parts = wrap_multipart_store(raw, objects, runtime=runtime_of(Telemetry()))
        upload = await parts.create_multipart("1")
        raw.fail("complete", *(Failure() for _ in range(100)))
        with pytest.raises(ObjectStoreUnavailableError):
            await parts.complete_multipart(upload, [UploadedPart(1, "x", 1)])
