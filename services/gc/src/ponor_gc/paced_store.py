"""Object store of a collector, whose deletions go through a rate limit.

The wrapper sits inside the retries, so that the pace sees every "slow down" error and retries wait for a turn. It sits outside the
meter, so that waiting does not count as the store's time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import MultipartStore, ObjectInfo, ObjectStore, ObjectStoreSlowDownError
from ponor_runtime.runtime import Runtime
from s3stream.stores.limited import LimitedObjectStore
from s3stream.stores.metered import DELETE_BATCH_KEYS, MeteredObjectStore
from s3stream.stores.open_store import open_multipart_store, open_raw_store
from s3stream.stores.retrying import RetryingObjectStore

from ponor_gc.deletion_pace import DeletionPace


class PacedObjectStore:
    """`ObjectStore` wrapper that limits the rate of deletions, with at most a thousand keys per call."""

    def __init__(self, inner: ObjectStore, pace: DeletionPace) -> None:
        self._inner = inner
        self._pace = pace

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._inner.put(key, buffers)

    async def get(self, key: str, start: int, length: int) -> bytes:
        return await self._inner.get(key, start, length)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        return await self._inner.get_tail(key, length)

    async def delete(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), DELETE_BATCH_KEYS):
            batch = keys[at : at + DELETE_BATCH_KEYS]
            turn = await self._pace.turn(len(batch))
            try:
                await self._inner.delete(batch)
            except ObjectStoreSlowDownError:
                self._pace.slowed(turn)
                raise
            self._pace.taken()

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._inner.list(prefix)

    async def close(self) -> None:
        await self._inner.close()


async def open_stores(
    url: str, pace: DeletionPace, runtime: Runtime, environment: Mapping[str, str]
) -> tuple[ObjectStore, MultipartStore]:
    """Open the store of a URL for a collector, and its multipart interface.

    Raises:
        ValueError: the URL or the environment is invalid.
        ObjectStoreError: the store cannot be opened.
    """
    store = collecting_store(
        await open_raw_store(url, runtime=runtime, environment=environment), pace, runtime
    )
    try:
        return store, await open_multipart_store(url, runtime=runtime, environment=environment, store=store)
    except BaseException:
        await store.close()
        raise


def collecting_store(raw: ObjectStore, pace: DeletionPace, runtime: Runtime) -> ObjectStore:
    """Wrap a raw store with metering, the pace, concurrency limits and retries."""
    paced = PacedObjectStore(MeteredObjectStore(raw, runtime.telemetry, runtime.clock), pace)
    runtime.telemetry.gauge("ponor_gc_delete_keys_per_second", lambda: pace.keys_per_s)
    return RetryingObjectStore(
        LimitedObjectStore(paced, telemetry=runtime.telemetry),
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
    )
