"""`MultipartStore` on a simulated bucket, with the faults and delays of `SimObjectStore`.

It keeps S3's promises: an object is visible only after completion, completion never overwrites, an
upload that is not ended stays open and is listed, and completion refuses parts below the minimum
size except the last. A call takes effect even if its process ends in the meantime.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final
from zlib import crc32

from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    MultipartNotFoundError,
    MultipartUpload,
    ObjectNotFoundError,
    ObjectStoreRefusedError,
    OpenMultipart,
    UploadedPart,
    check_key,
)

from ponor_simulation.loop import INCARNATION
from ponor_simulation.object_store import OpenUpload, SimBucket, SimObjectStore


class SimMultipartStore:
    """`MultipartStore` on the bucket of a simulated store; that store's faults affect every call."""

    def __init__(self, store: SimObjectStore, *, part_size_bytes_min: int = 1) -> None:
        self._store = store
        self._part_size_bytes_min: Final = part_size_bytes_min

    @property
    def part_size_bytes_min(self) -> int:
        return self._part_size_bytes_min

    @property
    def _bucket(self) -> SimBucket:
        return self._store.bucket

    async def create_multipart(self, key: str) -> MultipartUpload:
        check_key(key)

        def applied() -> MultipartUpload:
            self._bucket.multiparts_begun += 1
            upload_id = f"upload-{self._bucket.multiparts_begun}"
            self._bucket.multiparts[upload_id] = OpenUpload(key, self._store.now_ms())
            return MultipartUpload(key, upload_id)

        upload = await self._store.call("multipart_create", key, applied)
        begun = self._bucket.multiparts.get(upload.upload_id)
        # While the caller was paused, the collector may have aborted the upload.
        if begun is not None:
            begun.owner = INCARNATION.get()
        return upload

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        data = b"".join(buffers)
        return await self._store.call("multipart_part", upload.key, lambda: self._take(upload, number, data))

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        def applied() -> UploadedPart:
            source = self._bucket.objects.get(source_key)
            if source is None:
                raise ObjectNotFoundError(source_key)
            if start + length > len(source):
                raise ObjectStoreRefusedError(
                    f"bytes {start} to {start + length} of {source_key} do not exist: it has"
                    f" {len(source)} bytes"
                )
            return self._take(upload, number, source[start : start + length])

        return await self._store.call("multipart_copy", upload.key, applied)

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        def applied() -> None:
            found = self._open(upload)
            chosen: list[bytes] = []
            for part in sorted(parts, key=lambda part: part.number):
                etag, data = found.parts.get(part.number, ("", b""))
                if etag != part.etag:
                    raise ObjectStoreRefusedError(
                        f"{upload.key}: part {part.number} with ETag {part.etag} was not uploaded"
                    )
                chosen.append(data)
            if any(len(data) < self._part_size_bytes_min for data in chosen[:-1]):
                raise ObjectStoreRefusedError(
                    f"{upload.key}: a part before the last one has fewer than"
                    f" {self._part_size_bytes_min} bytes"
                )
            self._store.create(upload.key, b"".join(chosen))
            del self._bucket.multiparts[upload.upload_id]

        await self._store.call("multipart_complete", upload.key, applied)

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        check_key(upload.key)
        found = self._bucket.multiparts.get(upload.upload_id)
        if found is not None:
            found.given_up = True

        def applied() -> None:
            self._bucket.multiparts.pop(upload.upload_id, None)

        await self._store.call("multipart_abort", upload.key, applied)

    async def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        def applied() -> list[OpenMultipart]:
            return [
                OpenMultipart(found.key, upload_id, found.begun_at_ms)
                for upload_id, found in self._bucket.multiparts.items()
                if found.key.startswith(prefix)
            ]

        for row in await self._store.call("multipart_list", prefix, applied):
            yield row

    async def close(self) -> None:
        pass

    def _take(self, upload: MultipartUpload, number: int, data: bytes) -> UploadedPart:
        found = self._open(upload)
        etag = f"{crc32(data):08x}"  # from the contents, as in S3: a repeated part has the same etag
        found.parts[number] = (etag, data)
        return UploadedPart(number, etag, len(data))

    def _open(self, upload: MultipartUpload) -> OpenUpload:
        found = self._bucket.multiparts.get(upload.upload_id)
        if found is None:
            raise MultipartNotFoundError(f"{upload.key}: {upload.upload_id} was completed or aborted")
        return found
