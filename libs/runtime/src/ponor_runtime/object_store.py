"""The object-store port: immutable objects under keys.

Implementations live in `s3stream.stores` (a directory, S3) and in the simulator; one conformance suite runs against all of them
(libs/s3stream/tests/object_store_conformance.py). Wrappers (retry, metering, limits) implement the same protocol and compose.

Not a file system: no append, no rename, no directories. Keys are `/`-separated ASCII. Data puts are create-only, because an object id
is never used twice: whoever finds the key taken either repeats its own put or is a zombie.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ponor_runtime.disk import Buffer


class ObjectStoreError(Exception):
    """Root of what a store answers; `retriable` tells whether the same call may succeed later."""

    retriable = False


class ObjectNotFoundError(ObjectStoreError):
    """No object has this key."""


class MultipartNotFoundError(ObjectStoreError):
    """No such multipart upload: it was completed or aborted, or never begun."""


class ObjectAlreadyExistsError(ObjectStoreError):
    """A create-only put found the key taken."""


class ObjectStoreRefusedError(ObjectStoreError):
    """Credentials, bucket or configuration are wrong; no retry will help."""


class ObjectStoreUnavailableError(ObjectStoreError):
    """Overload, timeout, connection loss. The call may or may not have been applied."""

    retriable = True


class ObjectStoreSlowDownError(ObjectStoreUnavailableError):
    """The store asks for fewer requests at a time (503 Slow Down, 429)."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One row of a listing. `modified_at_ms`: when it was put, by the store's clock; None where the listing does not say."""

    key: str
    size_bytes: int
    modified_at_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """An object that is being written in parts; nobody sees it before it is completed."""

    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A part that is in the store. `number` counts from 1; `etag` is what the store calls it, in the store's own spelling."""

    number: int
    etag: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OpenMultipart:
    """One row of a listing of multipart uploads that were neither completed nor aborted; `begun_at_ms` by the store's clock."""

    key: str
    upload_id: str
    begun_at_ms: int


class ObjectStore(Protocol):
    """A bucket, or a prefix of one."""

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Create an object from the buffers, one after the other; durable when it returns. Large ones go by multipart.

        Raises:
            ObjectAlreadyExistsError: the key is taken.
            ObjectStoreError: see the classes.
        """
        ...

    async def get(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start` on, or fewer at the end of the object.

        Raises:
            ObjectNotFoundError: no such object.
            ObjectStoreError: see the classes.
        """
        ...

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        """The last `length` bytes (fewer if the object is smaller) and the object's size.

        Raises:
            ObjectNotFoundError: no such object.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; absent ones count as deleted."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in any order."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class MultipartStore(Protocol):
    """Objects of the same bucket, written in parts over time, and parts copied within the store. Not every store has this.

    Parts may be uploaded in any order and at the same time; a number that is uploaded again replaces the part.
    """

    @property
    def part_size_bytes_min(self) -> int:
        """Least bytes of every part but the last."""
        ...

    async def create_multipart(self, key: str) -> MultipartUpload:
        """Begin. Whoever never completes or aborts it leaves parts that cost money: GC lists and aborts them."""
        ...

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        """Write a part from the buffers, one after the other.

        Raises:
            MultipartNotFoundError: the upload is over.
            ObjectStoreError: see the classes.
        """
        ...

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        """Make bytes [start, start + length) of another object a part; they do not pass through here.

        Raises:
            MultipartNotFoundError: the upload is over.
            ObjectNotFoundError: no such source.
            ObjectStoreError: see the classes.
        """
        ...

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        """Create the object from its parts in the order of their numbers; durable when it returns.

        Raises:
            ObjectAlreadyExistsError: the key is taken. The upload stays open.
            MultipartNotFoundError: the upload is over: aborted, or completed by an earlier call whose answer was lost.
            ObjectStoreError: see the classes.
        """
        ...

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        """Throw all parts away; an absent upload counts as aborted."""
        ...

    def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        """Every open upload whose key starts with `prefix`, in any order."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
