"""Multipart uploads in an S3 bucket by aiobotocore, because obstore cannot upload parts one by one,
copy parts, or list and abort uploads.

Measured with SeaweedFS 4.48 (verified by test_multipart_stores.py): completion accepts `If-None-Match: *` and
returns 412 when the key exists, and the upload stays open; the abort of an absent upload is not an error. If
a store does not support the condition (501), every further completion sends a HEAD first, which is counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    MultipartNotFoundError,
    MultipartUpload,
    ObjectAlreadyExistsError,
    ObjectNotFoundError,
    OpenMultipart,
    UploadedPart,
)

from s3stream.stores.botocore_client import BotocoreBucket
from s3stream.stores.botocore_errors import BOTOCORE_ERRORS, is_not_implemented
from s3stream.stores.buffers import total_bytes
from s3stream.stores.part_body import PartBody

PART_BYTES_MIN: Final = 5 * 1024 * 1024
"""S3's minimum size of every part except the last."""

LIST_PAGE_UPLOADS: Final = 1000


class BotocoreMultipartStore:
    """`MultipartStore` in a bucket."""

    part_size_bytes_min: Final = PART_BYTES_MIN

    def __init__(self, bucket: BotocoreBucket) -> None:
        self._bucket = bucket
        self._completes_create_only = True

    def requests_of(self, operation: str, size_bytes: int, *, taken: bool) -> Mapping[str, int]:
        """Return the requests of one operation: a completion may need a HEAD (`metered.CountsRequests`)."""
        del size_bytes, taken
        if operation != "multipart_complete" or self._completes_create_only:
            return {operation: 1}
        return {"head": 1, operation: 1}

    async def create_multipart(self, key: str) -> MultipartUpload:
        client = await self._bucket.client()
        with self._bucket.as_store_error(key):
            answer = await client.create_multipart_upload(
                Bucket=self._bucket.name, Key=self._bucket.full_key(key)
            )
        return MultipartUpload(key, answer["UploadId"])

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        client = await self._bucket.client()
        with self._bucket.as_store_error(upload.key):
            answer = await client.upload_part(
                **self._named(upload), PartNumber=number, Body=PartBody(buffers)
            )
        return UploadedPart(number, answer["ETag"], total_bytes(buffers))

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        client = await self._bucket.client()
        with self._bucket.as_store_error(source_key):
            answer = await client.upload_part_copy(
                **self._named(upload),
                PartNumber=number,
                CopySource={"Bucket": self._bucket.name, "Key": self._bucket.full_key(source_key)},
                CopySourceRange=f"bytes={start}-{start + length - 1}",
            )
        return UploadedPart(number, answer["CopyPartResult"]["ETag"], length)

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        if self._completes_create_only:
            if await self._complete_if_absent(upload, parts):
                return
            self._completes_create_only = False
        if await self._exists(upload.key):
            raise ObjectAlreadyExistsError(f"{self._bucket.location}: {upload.key}: the key is taken")
        with self._bucket.as_store_error(upload.key):
            await self._complete(upload, parts)

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        client = await self._bucket.client()
        try:
            with self._bucket.as_store_error(upload.key):
                await client.abort_multipart_upload(**self._named(upload))
        except (MultipartNotFoundError, ObjectNotFoundError):
            return

    async def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        client = await self._bucket.client()
        behind: dict[str, str] = {}
        while True:
            with self._bucket.as_store_error(prefix):
                page = await client.list_multipart_uploads(
                    Bucket=self._bucket.name,
                    Prefix=self._bucket.full_prefix(prefix),
                    MaxUploads=LIST_PAGE_UPLOADS,
                    **behind,
                )
            for row in page.get("Uploads", []):
                begun_at_ms = int(row["Initiated"].timestamp() * 1000)
                yield OpenMultipart(self._bucket.own_key(row["Key"]), row["UploadId"], begun_at_ms)
            if not page.get("IsTruncated"):
                return
            behind = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page.get("NextUploadIdMarker", ""),
            }

    async def close(self) -> None:
        await self._bucket.close()

    async def _complete_if_absent(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> bool:
        """Complete the upload under the condition; return False if the store does not support it."""
        with self._bucket.as_store_error(upload.key):
            try:
                await self._complete(upload, parts, IfNoneMatch="*")
            except BOTOCORE_ERRORS as error:
                if is_not_implemented(error):
                    return False
                raise
        return True

    async def _complete(
        self, upload: MultipartUpload, parts: Sequence[UploadedPart], **condition: str
    ) -> None:
        client = await self._bucket.client()
        rows = [{"PartNumber": part.number, "ETag": part.etag} for part in sorted(parts, key=_number)]
        await client.complete_multipart_upload(
            **self._named(upload), MultipartUpload={"Parts": rows}, **condition
        )

    async def _exists(self, key: str) -> bool:
        client = await self._bucket.client()
        try:
            with self._bucket.as_store_error(key):
                await client.head_object(Bucket=self._bucket.name, Key=self._bucket.full_key(key))
        except ObjectNotFoundError:
            return False
        return True

    def _named(self, upload: MultipartUpload) -> dict[str, Any]:
        return {
            "Bucket": self._bucket.name,
            "Key": self._bucket.full_key(upload.key),
            "UploadId": upload.upload_id,
        }


def _number(part: UploadedPart) -> int:
    return part.number
