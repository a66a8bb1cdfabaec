"""The object-store port: immutable objects under keys.

Implementations live in `s3stream.stores` (a directory, S3) and in the simulator; one conformance suite runs
against all of them (libs/s3stream/tests/object_store_conformance.py). Wrappers (retry, metering, limits)
implement the same protocol and can be combined.

Not a file system: no append, no rename, no directories. Keys are `/`-separated ASCII. Data puts are
create-only. Because an object id is never reused, a put whose key is taken is either a retry or comes from a
fenced node.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ponor_runtime.disk import Buffer

KEY_BYTES_MAX: Final = 900
_SEGMENT: Final = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._=-]{1,200}"
_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
"""Keys that are valid as S3 keys, obstore paths and file names."""


def check_key(key: str) -> str:
    """Return the key.

    Raises:
        ValueError: it does not consist of segments of `A-Za-z0-9._=-` joined by `/`, it is too long, or a
            segment is `.` or `..`.
    """
    if len(key) > KEY_BYTES_MAX or _KEY.fullmatch(key) is None:
        raise ValueError(
            f"object store key {key[:100]!r} is invalid: expected segments of A-Z a-z 0-9 . _"
            f" = - joined by '/', at most {KEY_BYTES_MAX} characters"
        )
    return key


class ObjectStoreError(Exception):
    """Base class of store errors; `retriable` tells whether the same call may succeed later."""

    retriable = False


class ObjectNotFoundError(ObjectStoreError):
    """No object has this key."""


class MultipartNotFoundError(ObjectStoreError):
    """The multipart upload was completed, aborted or never created."""


class ObjectAlreadyExistsError(ObjectStoreError):
    """A create-only put found the key taken."""


class ObjectStoreRefusedError(ObjectStoreError):
    """Credentials, bucket or configuration are wrong; retries do not help."""


class ObjectStoreUnavailableError(ObjectStoreError):
    """Overload, timeout or connection loss. The call may or may not have been applied."""

    retriable = True


class ObjectStoreSlowDownError(ObjectStoreUnavailableError):
    """The store asks for a lower request rate (503 Slow Down, 429)."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One row of a listing.

    `modified_at_ms`: time of the put by the store's clock; None if the listing omits it.
    """

    key: str
    size_bytes: int
    modified_at_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """An object being written in parts; it is invisible before completion."""

    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A stored part. `number` counts from 1; `etag` is the store's own value, unchanged."""

    number: int
    etag: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OpenMultipart:
    """One row of a listing of open multipart uploads; `begun_at_ms` by the store's clock."""

    key: str
    upload_id: str
    begun_at_ms: int


class ObjectStore(Protocol):
    """A bucket, or a prefix of one."""

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Create an object from the consecutive buffers; durable on return. Large objects use multipart.

        Raises:
            ObjectAlreadyExistsError: the key is taken.
            ObjectStoreError: any other failure.
        """
        ...

    async def get(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, or fewer at the end of the object.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectStoreError: any other failure.
        """
        ...

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """Return the last `length` bytes (fewer if the object is smaller) and the object's size.

        Raises:
            ObjectNotFoundError: no such object.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; absent keys count as deleted."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield every object whose key starts with `prefix`, in any order."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class MultipartStore(Protocol):
    """Objects written in parts over time, and parts copied within the store. Not every store supports this.

    Parts may be uploaded in any order and concurrently; a part with an existing number replaces it.
    """

    @property
    def part_size_bytes_min(self) -> int:
        """Minimum size of every part but the last."""
        ...

    async def create_multipart(self, key: str) -> MultipartUpload:
        """Create an upload. The parts of an abandoned upload cost money; GC lists and aborts such uploads."""
        ...

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        """Upload a part from the consecutive buffers.

        Raises:
            MultipartNotFoundError: the upload is not open.
            ObjectStoreError: any other failure.
        """
        ...

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        """Copy bytes [start, start + length) of another object into a part, within the store.

        Raises:
            MultipartNotFoundError: the upload is not open.
            ObjectNotFoundError: no such source.
            ObjectStoreError: any other failure.
        """
        ...

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        """Create the object from its parts in the order of their numbers; durable on return.

        Raises:
            ObjectAlreadyExistsError: the key is taken. The upload stays open.
            MultipartNotFoundError: the upload was aborted, or completed by an earlier call whose response was
                lost.
            ObjectStoreError: any other failure.
        """
        ...

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        """Discard all parts; an absent upload counts as aborted."""
        ...

    def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        """Yield every open upload whose key starts with `prefix`, in any order."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
