"""Multipart store for `store_rig.MemoryObjectStore`. It passes the conformance suite, and tests can
make single calls fail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    MultipartNotFoundError,
    MultipartUpload,
    ObjectAlreadyExistsError,
    OpenMultipart,
    UploadedPart,
    check_key,
)

from libs.s3stream.tests.store_rig import Failure, MemoryObjectStore


class MemoryMultipartStore:
    """`MultipartStore` over the objects of a memory store. Refuses parts below the minimum, as S3 does."""

    def __init__(self, objects: MemoryObjectStore, *, part_size_bytes_min: int = 1) -> None:
        self.objects = objects
        self.part_size_bytes_min = part_size_bytes_min
        self.uploads: dict[tuple[str, str], dict[int, bytes]] = {}
        self.calls: list[tuple[str, str, int]] = []
        self.failures: dict[str, list[Failure]] = {}
        self.begun = 0

    def fail(self, op: str, *failures: Failure) -> None:
        self.failures.setdefault(op, []).extend(failures)

    async def create_multipart(self, key: str) -> MultipartUpload:
        failure = self._begin("create", check_key(key), 0)
        self.begun += 1
        upload = MultipartUpload(key, f"upload-{self.begun}")
        self._apply(failure, lambda: self.uploads.update({(key, upload.upload_id): {}}))
        return upload

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        data = b"".join(buffers)
        failure = self._begin("part", upload.key, len(data))
        self._apply(failure, lambda: self._parts(upload).update({number: data}))
        return UploadedPart(number, f"etag-{number}", len(data))

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        failure = self._begin("copy", source_key, length)
        data = self.objects._object(source_key)[start : start + length]
        assert len(data) == length, "a range within the object"
        self._apply(failure, lambda: self._parts(upload).update({number: data}))
        return UploadedPart(number, f"etag-{number}", length)

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        failure = self._begin("complete", upload.key, len(parts))
        self._apply(failure, lambda: self._complete(upload, parts))

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        failure = self._begin("abort", check_key(upload.key), 0)
        self._apply(failure, lambda: self.uploads.pop((upload.key, upload.upload_id), None))

    async def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        for key, upload_id in list(self.uploads):
            if key.startswith(prefix):
                yield OpenMultipart(key, upload_id, 1_700_000_000_000)

    async def close(self) -> None:
        pass

    def _complete(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        stored = self._parts(upload)
        if upload.key in self.objects.objects:
            raise ObjectAlreadyExistsError(f"{upload.key}: the key is taken")
        numbers = sorted(part.number for part in parts)
        assert all(len(stored[number]) >= self.part_size_bytes_min for number in numbers[:-1])
        self.objects.objects[upload.key] = b"".join(stored[number] for number in numbers)
        del self.uploads[upload.key, upload.upload_id]

    def _parts(self, upload: MultipartUpload) -> dict[int, bytes]:
        if (upload.key, upload.upload_id) not in self.uploads:
            raise MultipartNotFoundError(f"{upload.key}: no multipart upload {upload.upload_id}")
        return self.uploads[upload.key, upload.upload_id]

    def _begin(self, op: str, key: str, size_bytes: int) -> Failure | None:
        self.calls.append((op, key, size_bytes))
        waiting = self.failures.get(op)
        return waiting.pop(0) if waiting else None

    def _apply(self, failure: Failure | None, change: object) -> None:
        assert callable(change)
        if failure is None or failure.applied:
            change()
        if failure is not None:
            raise failure.error
