"""Policies around an object store: retries, limits, rates and metering as one pipeline.

A store describes each call as an `Operation` and hands the pipeline an attempt: one call of the raw store.
Every policy decides when and how often it runs the attempt of the next inner policy. Listings are iterated,
so they have a separate method (docs/design/storage-and-write-path.md#store-policies).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, TypeVar

from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    MultipartStore,
    MultipartUpload,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreUnavailableError,
    OpenMultipart,
    UploadedPart,
)

from s3stream.stores.buffers import last_bytes, total_bytes
from s3stream.stores.reads_in_place import get_into, reads_in_place

_T = TypeVar("_T")
Attempt: TypeAlias = Callable[[], Awaitable[_T]]
Listing: TypeAlias = Callable[[], AsyncIterator[_T]]

REQUEST_CLASSES: Final[Mapping[str, str]] = {
    "put": "put",
    "multipart_create": "put",
    "multipart_part": "put",
    "multipart_copy": "put",
    "multipart_complete": "put",
    "multipart_list": "put",
    "list": "put",
    "get": "get",
    "head": "get",
    "delete": "delete",
    "multipart_abort": "delete",
}
"""Operations by price class: PUT, POST, LIST and multipart calls are "put", except the abort, which
is a DELETE."""
OBJECT_OPERATIONS: Final = ("put", "get", "list", "delete")
PART_OPERATIONS: Final = tuple(name for name in REQUEST_CLASSES if name.startswith("multipart_"))

DELETE_BATCH_KEYS: Final = 1000
LIST_PAGE_KEYS: Final = 1000
COMPARED_TAIL_BYTES: Final = 64 * 1024
"""The tail of an object contains the footer and most of the index with the CRC32C of every block, so objects
with equal lengths and tails are equal."""


@dataclass(slots=True)
class Operation:
    """One call to a store, as seen by policies.

    Attributes: name: a key of `REQUEST_CLASSES`. key: key of the object, first key of a deletion,
    or prefix of a listing. start: first byte of a read; negative: counted from the end of the
    object. size_bytes: bytes to write, or maximum bytes to read. keys: number of keys of a
    deletion. was_applied: called when a repeated create-only call found its key taken; returns
    whether an earlier attempt of this operation created the object and only its answer was lost.
    read_bytes: bytes that the last attempt read.
    """

    name: str
    key: str
    start: int = 0
    size_bytes: int = 0
    keys: int = 1
    was_applied: Callable[[], Awaitable[bool]] | None = None
    read_bytes: int = 0

    def __post_init__(self) -> None:
        assert self.name in REQUEST_CLASSES, self.name
        assert self.size_bytes >= 0
        assert self.keys > 0


class StorePolicy(ABC):
    """One policy for calls to a store, for example retries or metering."""

    @abstractmethod
    async def call(self, operation: Operation, attempt: Attempt[_T]) -> _T:
        """Execute an operation by running the attempt."""

    def listing(self, operation: Operation, attempt: Listing[_T]) -> AsyncIterator[_T]:
        """Execute a listing; by default the policy does not affect listings."""
        del operation
        return attempt()


class _Pipeline:
    """Policies from the outermost to the innermost."""

    def __init__(self, policies: Sequence[StorePolicy]) -> None:
        self._inside_out = tuple(reversed(policies))

    async def call(self, operation: Operation, attempt: Attempt[_T]) -> _T:
        for policy in self._inside_out:
            attempt = partial(policy.call, operation, attempt)
        return await attempt()

    def listing(self, operation: Operation, attempt: Listing[_T]) -> AsyncIterator[_T]:
        for policy in self._inside_out:
            attempt = partial(policy.listing, operation, attempt)
        return attempt()


class PolicyObjectStore:
    """`ObjectStore` whose calls to a raw store follow policies; the first policy is the outermost."""

    def __init__(self, raw: ObjectStore, policies: Sequence[StorePolicy]) -> None:
        self._raw = raw
        self._pipeline = _Pipeline(policies)

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        operation = Operation(
            "put",
            key,
            size_bytes=total_bytes(buffers),
            was_applied=partial(self._is_stored, key, buffers),
        )
        await self._pipeline.call(operation, partial(self._raw.put, key, buffers))

    async def get(self, key: str, start: int, length: int) -> bytes:
        operation = Operation("get", key, start, max(length, 0))

        async def attempt() -> bytes:
            data = await self._raw.get(key, start, length)
            operation.read_bytes = len(data)
            return data

        return await self._pipeline.call(operation, attempt)

    @property
    def reads_in_place(self) -> bool:
        return reads_in_place(self._raw)

    async def get_into(self, key: str, start: int, places: Sequence[memoryview]) -> int:
        operation = Operation("get", key, start, total_bytes(places))

        async def attempt() -> int:
            operation.read_bytes = await get_into(self._raw, key, start, places)
            return operation.read_bytes

        return await self._pipeline.call(operation, attempt)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        operation = Operation("get", key, -length, length)

        async def attempt() -> tuple[bytes, int]:
            tail, size_bytes = await self._raw.get_tail(key, length)
            if len(tail) != min(length, size_bytes):
                # The expected length of other reads is unknown here; readers of blocks check it and retry.
                raise ObjectStoreUnavailableError(f"{key}: the response ended after {len(tail)} bytes")
            operation.read_bytes = len(tail)
            return tail, size_bytes

        return await self._pipeline.call(operation, attempt)

    async def delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), DELETE_BATCH_KEYS):
            batch = keys[first : first + DELETE_BATCH_KEYS]
            operation = Operation("delete", batch[0], keys=len(batch))
            await self._pipeline.call(operation, partial(self._raw.delete, batch))

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._pipeline.listing(Operation("list", prefix), partial(self._raw.list, prefix))

    async def close(self) -> None:
        await self._raw.close()

    async def _is_stored(self, key: str, buffers: Sequence[Buffer]) -> bool:
        tail, size_bytes = await self.get_tail(key, COMPARED_TAIL_BYTES)
        return size_bytes == total_bytes(buffers) and tail == last_bytes(buffers, COMPARED_TAIL_BYTES)


class PolicyMultipartStore:
    """`MultipartStore` whose calls to a raw store follow policies.

    A repeated creation may leave an upload behind, which garbage collection aborts. A completion whose answer
    was lost is repeated and finds its key taken or its upload closed. If the object then has the length of
    the parts, the completion succeeded, because an object id is prepared for one writer.

    Args:
        raw: one attempt per call.
        policies: the first policy is the outermost.
        store: the store of whole objects at the same place.
    """

    def __init__(self, raw: MultipartStore, policies: Sequence[StorePolicy], store: ObjectStore) -> None:
        self._raw = raw
        self._pipeline = _Pipeline(policies)
        self._store = store

    @property
    def part_size_bytes_min(self) -> int:
        return self._raw.part_size_bytes_min

    async def create_multipart(self, key: str) -> MultipartUpload:
        operation = Operation("multipart_create", key)
        return await self._pipeline.call(operation, partial(self._raw.create_multipart, key))

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        operation = Operation("multipart_part", upload.key, size_bytes=total_bytes(buffers))
        return await self._pipeline.call(operation, partial(self._raw.upload_part, upload, number, buffers))

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        # The store copies the data; this process reads and writes nothing.
        operation = Operation("multipart_copy", upload.key)
        attempt = partial(self._raw.upload_part_copy, upload, number, source_key, start, length)
        return await self._pipeline.call(operation, attempt)

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        operation = Operation(
            "multipart_complete", upload.key, was_applied=partial(self._is_completed, upload, parts)
        )
        await self._pipeline.call(operation, partial(self._raw.complete_multipart, upload, parts))

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        operation = Operation("multipart_abort", upload.key)
        await self._pipeline.call(operation, partial(self._raw.abort_multipart, upload))

    def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        operation = Operation("multipart_list", prefix)
        return self._pipeline.listing(operation, partial(self._raw.list_multiparts, prefix))

    async def close(self) -> None:
        await self._raw.close()

    async def _is_completed(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> bool:
        try:
            _, size_bytes = await self._store.get_tail(upload.key, 1)
        except ObjectNotFoundError:
            return False
        if size_bytes != sum(part.size_bytes for part in parts):
            return False
        # A store may keep an upload open whose completion was repeated.
        await self.abort_multipart(upload)
        return True
