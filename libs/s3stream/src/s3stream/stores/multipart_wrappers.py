"""Metering, limits and retries around a multipart store: what `metered.py`, `limited.py` and `retrying.py` are for whole objects.

Composed in the same order, retries outermost, so that every call that leaves is counted and holds a place only while it is under way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar, runtime_checkable

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    MultipartNotFoundError,
    MultipartStore,
    MultipartUpload,
    ObjectAlreadyExistsError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
    OpenMultipart,
    UploadedPart,
)
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from s3stream.stores.buffers import total_bytes
from s3stream.stores.congestion import CongestionWindow
from s3stream.stores.metered import REQUEST_CLASSES
from s3stream.stores.retrying import Retry, RetrySettings

PARTS_IN_FLIGHT_MAX: Final = 16
LIST_PAGE_UPLOADS: Final = 1000
_T = TypeVar("_T")
_OPS: Final = tuple(op for op in REQUEST_CLASSES if op.startswith("multipart_"))


@runtime_checkable
class TellsCompleteRequests(Protocol):
    """A raw store whose completions are not always one call."""

    def requests_of_complete(self) -> Mapping[str, int]:
        """Calls by operation that a completion makes."""
        ...


class MeteredMultipartStore:
    """`MultipartStore` that counts calls, bytes and errors of another one, and measures durations."""

    def __init__(self, inner: MultipartStore, telemetry: Telemetry, clock: Clock) -> None:
        self._inner = inner
        self._telemetry = telemetry
        self._clock = clock
        self._requests = {
            op: telemetry.counter("ponor_object_store_requests_total", **{"op": op, "class": request_class})
            for op, request_class in REQUEST_CLASSES.items()
        }
        self._written_bytes = telemetry.counter("ponor_object_store_bytes_total", direction="write")
        self._durations = {
            op: telemetry.histogram("ponor_object_store_request_seconds", op=op) for op in _OPS
        }

    @property
    def part_size_bytes_min(self) -> int:
        return self._inner.part_size_bytes_min

    async def create_multipart(self, key: str) -> MultipartUpload:
        with self._measured("multipart_create"):
            return await self._inner.create_multipart(key)

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        self._written_bytes.add(total_bytes(buffers))
        with self._measured("multipart_part"):
            return await self._inner.upload_part(upload, number, buffers)

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        with self._measured("multipart_copy"):
            return await self._inner.upload_part_copy(upload, number, source_key, start, length)

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        if isinstance(self._inner, TellsCompleteRequests):
            self._requests["head"].add(self._inner.requests_of_complete().get("head", 0))
        with self._measured("multipart_complete"):
            await self._inner.complete_multipart(upload, parts)

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        with self._measured("multipart_abort"):
            await self._inner.abort_multipart(upload)

    async def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        listed = 0
        with self._measured("multipart_list"):
            async for row in self._inner.list_multiparts(prefix):
                if listed and listed % LIST_PAGE_UPLOADS == 0:
                    self._requests["multipart_list"].add(1)
                listed += 1
                yield row

    async def close(self) -> None:
        await self._inner.close()

    @contextmanager
    def _measured(self, op: str) -> Iterator[None]:
        self._requests[op].add(1)
        started_ns = self._clock.monotonic_ns()
        try:
            yield
        except ObjectStoreError as error:
            name = type(error).__name__
            self._telemetry.counter("ponor_object_store_errors_total", op=op, error=name).add(1)
            raise
        finally:
            self._durations[op].record((self._clock.monotonic_ns() - started_ns) // 1000)


class LimitedMultipartStore:
    """`MultipartStore` that lets a number of writes through at a time, fewer while the store is slow. Listings are long and rare and are not counted."""

    def __init__(self, inner: MultipartStore, *, parts_in_flight_max: int = PARTS_IN_FLIGHT_MAX) -> None:
        self._inner = inner
        self._writes = CongestionWindow(parts_in_flight_max)

    @property
    def part_size_bytes_min(self) -> int:
        return self._inner.part_size_bytes_min

    async def create_multipart(self, key: str) -> MultipartUpload:
        async with self._writes.place():
            return await self._inner.create_multipart(key)

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        async with self._writes.place():
            return await self._inner.upload_part(upload, number, buffers)

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        async with self._writes.place():
            return await self._inner.upload_part_copy(upload, number, source_key, start, length)

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        async with self._writes.place():
            await self._inner.complete_multipart(upload, parts)

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        async with self._writes.place():
            await self._inner.abort_multipart(upload)

    def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        return self._inner.list_multiparts(prefix)

    async def close(self) -> None:
        await self._inner.close()


class RetryingMultipartStore:
    """`MultipartStore` that repeats the retriable failures of another one; the last error is raised when time or attempts run out.

    Knows what repetitions mean: a creation whose answer was lost leaves an upload that GC aborts; a completion whose answer was lost finds the key
    taken, or the upload gone, and the object must then be as long as its parts. That is proof enough: an id is prepared for one writer.
    """

    def __init__(
        self,
        inner: MultipartStore,
        *,
        store: ObjectStore,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
        settings: RetrySettings | None = None,
    ) -> None:
        self._inner = inner
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._settings: Final = settings if settings is not None else RetrySettings()
        self._retries = {
            op: telemetry.counter("ponor_object_store_retries_total", op=op)
            for op in _OPS
            if op != "multipart_list"
        }

    @property
    def part_size_bytes_min(self) -> int:
        return self._inner.part_size_bytes_min

    async def create_multipart(self, key: str) -> MultipartUpload:
        return await self._repeat("multipart_create", lambda: self._inner.create_multipart(key))

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        return await self._repeat("multipart_part", lambda: self._inner.upload_part(upload, number, buffers))

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        return await self._repeat(
            "multipart_copy",
            lambda: self._inner.upload_part_copy(upload, number, source_key, start, length),
        )

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        retry = self._new_retry("multipart_complete")
        while True:
            try:
                return await self._inner.complete_multipart(upload, parts)
            except (ObjectAlreadyExistsError, MultipartNotFoundError):
                if retry.failures == 0 or not await self._is_stored(upload.key, parts):
                    raise
                await self._inner.abort_multipart(
                    upload
                )  # a store may keep an upload whose completion it repeated in vain
                return None
            except ObjectStoreError as error:
                await retry.wait_after(error)

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        await self._repeat("multipart_abort", lambda: self._inner.abort_multipart(upload))

    def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        """One attempt: whoever lists does so again later."""
        return self._inner.list_multiparts(prefix)

    async def close(self) -> None:
        await self._inner.close()

    async def _repeat(self, op: str, call: Callable[[], Awaitable[_T]]) -> _T:
        retry = self._new_retry(op)
        while True:
            try:
                return await call()
            except ObjectStoreError as error:
                await retry.wait_after(error)

    async def _is_stored(self, key: str, parts: Sequence[UploadedPart]) -> bool:
        try:
            _, size_bytes = await self._store.get_tail(key, 1)
        except ObjectNotFoundError:
            return False
        return size_bytes == sum(part.size_bytes for part in parts)

    def _new_retry(self, op: str) -> Retry:
        return Retry(self._clock, self._randomness, self._settings, self._retries[op].add)
