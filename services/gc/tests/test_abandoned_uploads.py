"""Tests that abandoned multipart uploads are aborted, and that uploads that may still complete are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from ponor_gc.verdicts import Verdict
from ponor_metadata.nouns import counters
from ponor_runtime.object_store import (
    MultipartNotFoundError,
    MultipartUpload,
    ObjectStoreRefusedError,
    OpenMultipart,
)
from ponor_runtime.runtime import Runtime
from s3stream.stores.directory_multipart import DirectoryMultipartStore

from services.gc.tests.bucket_world import SETTINGS, BucketWorld, key_of


class NoListings(DirectoryMultipartStore):
    """A store that cannot list open uploads, like some S3 servers."""

    async def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        async for upload in super().list_multiparts(prefix):
            yield upload
        raise ObjectStoreRefusedError("ListMultipartUploads: 501 Not Implemented")


async def _open(
    runtime: Runtime, kind: type[DirectoryMultipartStore] = DirectoryMultipartStore
) -> DirectoryMultipartStore:
    return await kind.open(
        runtime.disk, PurePosixPath("/store"), clock=runtime.clock, randomness=runtime.randomness
    )


async def _listed(store: DirectoryMultipartStore) -> set[str]:
    return {upload.key async for upload in store.list_multiparts("")}


def test_only_uploads_that_cannot_complete_are_aborted() -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        multipart = await _open(runtime)
        abandoned, prepared, committed = world.prepare(), world.prepare(ttl_ms=1), world.prepare()
        following = counters.next_value(world.image, counters.OBJECT)
        begun: dict[str, MultipartUpload] = {}
        for key in (
            key_of(abandoned),
            key_of(prepared),
            key_of(committed),
            key_of(following),
            key_of(abandoned, "cluster-4"),
            "foreign/writer/upload",
        ):
            begun[key] = await multipart.create_multipart(key)
            await multipart.upload_part(begun[key], 1, [b"part"])
        world.commit(committed)
        world.remove(abandoned)
        rounds = world.rounds(runtime, multipart=multipart)
        assert (await rounds.go()).uploads[Verdict.YOUNG] == 2
        await world.pass_hours(2)
        looked = await world.rounds(
            runtime, replace(SETTINGS, reconcile_dry_run=True), multipart=multipart
        ).go()
        assert (looked.aborted, looked.uploads[Verdict.DEAD]) == (0, 2)
        report = await rounds.go()
        assert (report.aborted, report.uploads[Verdict.KNOWN], report.uploads[Verdict.FUTURE]) == (2, 1, 1)
        assert report.uploads[Verdict.OTHERS] == 2
        assert await _listed(multipart) == set(begun) - {key_of(abandoned), key_of(committed)}
        late = begun[key_of(abandoned)]
        with pytest.raises(MultipartNotFoundError):  # the writer resumes and creates no object
            await multipart.upload_part(late, 2, [b"part"])
        world.remove(prepared)
        assert (await rounds.go()).aborted == 1
        assert runtime.telemetry.counter("ponor_gc_collected_total", reason="upload").value == 3
        await multipart.close()

    world.play(story)


def test_unconfirmed_incarnation_aborts_nothing() -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        multipart = await _open(runtime)
        await multipart.create_multipart(key_of(world.gone()))
        await world.pass_hours(2)
        world.unconfirmed(True)
        assert (await world.rounds(runtime, multipart=multipart).go()).aborted == 0
        assert len(await _listed(multipart)) == 1
        await multipart.close()

    world.play(story)


@pytest.mark.parametrize("has_uploads", [True, False])
def test_store_without_upload_listing_is_reported_once(
    has_uploads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        multipart = await _open(runtime, NoListings) if has_uploads else None
        rounds = world.rounds(runtime, multipart=multipart)
        for _ in range(3):
            report = await rounds.go()
            assert not report.uploads_listed
        if multipart is not None:
            await multipart.close()

    world.play(story)
    assert caplog.text.count("abandoned multipart uploads are not aborted") == 1
