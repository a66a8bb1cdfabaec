"""Object stores of a compactor that report every "slow down" error to its pace.

The wrappers sit inside the retries, so that the pace sees every such error, and outside the meter, which must see the raw store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    MultipartStore,
    MultipartUpload,
    ObjectInfo,
    ObjectStore,
    ObjectStoreSlowDownError,
    OpenMultipart,
    UploadedPart,
)
from ponor_runtime.runtime import Runtime
from s3stream.stores.limited import LimitedObjectStore
from s3stream.stores.metered import MeteredObjectStore
from s3stream.stores.multipart_wrappers import (
    LimitedMultipartStore,
    MeteredMultipartStore,
    RetryingMultipartStore,
)
from s3stream.stores.open_store import open_raw_multipart_store, open_raw_store
from s3stream.stores.reads_in_place import get_into, reads_in_place
from s3stream.stores.retrying import RetryingObjectStore

from ponor_compactor.pace import Pace


class HeedingObjectStore:
    """`ObjectStore` wrapper that reports "slow down" errors to a pace."""

    def __init__(self, inner: ObjectStore, pace: Pace) -> None:
        self._inner = inner
        self._pace = pace

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        with _heeding(self._pace):
            await self._inner.put(key, buffers)

    async def get(self, key: str, start: int, length: int) -> bytes:
        with _heeding(self._pace):
            return await self._inner.get(key, start, length)

    @property
    def reads_in_place(self) -> bool:
        return reads_in_place(self._inner)

    async def get_into(self, key: str, start: int, places: Sequence[memoryview]) -> int:
        with _heeding(self._pace):
            return await get_into(self._inner, key, start, places)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        with _heeding(self._pace):
            return await self._inner.get_tail(key, length)

    async def delete(self, keys: Sequence[str]) -> None:
        with _heeding(self._pace):
            await self._inner.delete(keys)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._inner.list(prefix)

    async def close(self) -> None:
        await self._inner.close()


class HeedingMultipartStore:
    """`MultipartStore` wrapper that reports "slow down" errors to a pace."""

    def __init__(self, inner: MultipartStore, pace: Pace) -> None:
        self._inner = inner
        self._pace = pace

    @property
    def part_size_bytes_min(self) -> int:
        return self._inner.part_size_bytes_min

    async def create_multipart(self, key: str) -> MultipartUpload:
        with _heeding(self._pace):
            return await self._inner.create_multipart(key)

    async def upload_part(
        self, upload: MultipartUpload, number: int, buffers: Sequence[Buffer]
    ) -> UploadedPart:
        with _heeding(self._pace):
            return await self._inner.upload_part(upload, number, buffers)

    async def upload_part_copy(
        self, upload: MultipartUpload, number: int, source_key: str, start: int, length: int
    ) -> UploadedPart:
        with _heeding(self._pace):
            return await self._inner.upload_part_copy(upload, number, source_key, start, length)

    async def complete_multipart(self, upload: MultipartUpload, parts: Sequence[UploadedPart]) -> None:
        with _heeding(self._pace):
            await self._inner.complete_multipart(upload, parts)

    async def abort_multipart(self, upload: MultipartUpload) -> None:
        with _heeding(self._pace):
            await self._inner.abort_multipart(upload)

    def list_multiparts(self, prefix: str) -> AsyncIterator[OpenMultipart]:
        return self._inner.list_multiparts(prefix)

    async def close(self) -> None:
        await self._inner.close()


async def open_stores(
    url: str, pace: Pace, runtime: Runtime, environment: Mapping[str, str]
) -> tuple[ObjectStore, MultipartStore]:
    """Open the store of a URL for a compactor, and its multipart interface.

    Raises:
        ValueError: the URL or the environment is invalid.
        ObjectStoreError: the store cannot be opened.
    """
    raw = await open_raw_store(url, runtime=runtime, environment=environment)
    try:
        parts = await open_raw_multipart_store(url, runtime=runtime, environment=environment)
    except BaseException:
        await raw.close()
        raise
    return compacting_stores(raw, parts, pace, runtime)


def compacting_stores(
    raw: ObjectStore, parts: MultipartStore, pace: Pace, runtime: Runtime
) -> tuple[ObjectStore, MultipartStore]:
    """Wrap raw stores with metering, the pace, concurrency limits and retries."""
    clock, randomness, telemetry = runtime.clock, runtime.randomness, runtime.telemetry
    heeding = HeedingObjectStore(MeteredObjectStore(raw, telemetry, clock), pace)
    store = RetryingObjectStore(
        LimitedObjectStore(heeding, telemetry=telemetry),
        clock=clock,
        randomness=randomness,
        telemetry=telemetry,
    )
    heeding_parts = HeedingMultipartStore(MeteredMultipartStore(parts, telemetry, clock), pace)
    multipart = RetryingMultipartStore(
        LimitedMultipartStore(heeding_parts),
        store=store,
        clock=clock,
        randomness=randomness,
        telemetry=telemetry,
    )
    return store, multipart


@contextmanager
def _heeding(pace: Pace) -> Iterator[None]:
    try:
        yield
    except ObjectStoreSlowDownError:
        pace.slowed()
        raise
