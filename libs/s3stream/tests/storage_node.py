"""A storage node for scenarios: real log, real directory store, real disk, with `cluster_model` as
the controller.

`crash` drops the process's memory. Tests in tests/simulation cover the loss of disk writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer, Disk
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_runtime.network import Network
from ponor_runtime.object_store import ObjectInfo, ObjectStore, ObjectStoreUnavailableError
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry
from s3stream.client import StreamClient
from s3stream.file_wal import FileWal
from s3stream.records import StreamRecord
from s3stream.settings import KIB, MIB, StorageSettings
from s3stream.stores.directory import DirectoryObjectStore
from s3stream.stream import Stream

from libs.s3stream.tests.cluster_model import ClusterModel

IDENTITY = bytes(range(16))


def small_settings(**changes: Any) -> StorageSettings:
    """Small sizes: a test moves kilobytes where a broker moves megabytes. Age never triggers an
    upload by default.
    """
    values: dict[str, Any] = {
        "log_cache_bytes_max": 8 * MIB,
        "append_waiting_bytes_max": 256 * KIB,
        "upload_size_bytes_max": 512 * KIB,
        "upload_interval_ms": 3_600_000,
        "split_size_bytes": 256 * KIB,
        "object_block_bytes_max": 32 * KIB,
        "small_rest_bytes_max": 64 * KIB,
        "wal_bytes_max": 64 * MIB,
        "upload_retry_ms_max": 20,
        "force_linger_ms": 1,
    }
    return StorageSettings(**{**values, **changes})


class WatchedStore:
    """Counts calls, can fail, can hold puts back."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.puts = 0
        self.gets = 0
        self.gets_under_way = 0
        self.most_gets_at_once = 0
        self.unreadable = ""
        """A key whose reads fail."""
        self.down = False
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.before_put: Callable[[str], None] = lambda _: None

    @property
    def calls(self) -> int:
        return self.puts + self.gets

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        self.puts += 1
        self.before_put(key)
        await self.open_gate.wait()
        self._check()
        await self.inner.put(key, buffers)

    async def get(self, key: str, start: int, length: int) -> bytes:
        with self._reading(key):
            return await self.inner.get(key, start, length)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        with self._reading(key):
            return await self.inner.get_tail(key, length)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.inner.delete(keys)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self.inner.list(prefix)

    async def close(self) -> None:
        await self.inner.close()

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        self.gets += 1
        self._check()
        if key == self.unreadable:
            raise ObjectStoreUnavailableError(f"{key} cannot be read")
        self.gets_under_way += 1
        self.most_gets_at_once = max(self.most_gets_at_once, self.gets_under_way)
        try:
            yield
        finally:
            self.gets_under_way -= 1

    def _check(self) -> None:
        if self.down:
            raise ObjectStoreUnavailableError("the store is down")


class StorageNode:
    """The storage of one node across its processes. `failures` collects errors that would end a process."""

    def __init__(
        self, disk: Disk, clock: Clock, store: WatchedStore, path: Path, settings: StorageSettings
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.store = store
        self.path = path
        self.settings = settings
        self.cluster = ClusterModel(clock, prepared_ttl_ms=settings.prepared_ttl_ms)
        self.failures: list[BaseException] = []
        self.failed = asyncio.Event()
        self.client: StreamClient
        self.wal: FileWal
        self.tasks: BackgroundTasks
        self.telemetry: Telemetry
        self._epoch = 0

    @classmethod
    async def create(cls, path: Path, settings: StorageSettings | None = None) -> StorageNode:
        disk = SystemDisk()
        store = WatchedStore(await DirectoryObjectStore.open(disk, path / "store"))
        return cls(disk, SystemClock(), store, path, settings or small_settings())

    async def start(self) -> StreamClient:
        """Start a new process of the node: register, open the log, recover."""
        self.failed.clear()
        self.telemetry = Telemetry()
        runtime = Runtime(self.clock, SystemRandomness(), self.disk, cast(Network, None), self.telemetry)
        self.tasks = BackgroundTasks(self._on_failure)
        self.wal = await FileWal.open(
            self.disk, self.path / "wal", identity=IDENTITY, settings=self.settings, telemetry=self.telemetry
        )
        ports = self.cluster.register()
        try:
            self.client = await StreamClient.start(
                runtime=runtime,
                store=self.store,
                wal=self.wal,
                streams=ports,
                objects=ports,
                settings=self.settings,
                tasks=self.tasks,
            )
        except BaseException:
            await self.crash()
            raise
        return self.client

    async def crash(self) -> None:
        """Kill the process without a shutdown."""
        self.cluster.node_epoch += 1  # tasks that still run may change nothing
        await self.tasks.close()
        await self.wal.close()

    async def restart(self) -> StreamClient:
        """Crash, and start again."""
        await self.crash()
        return await self.start()

    async def open_new(self, count: int) -> list[Stream]:
        """Create streams and open them."""
        return await self.open(await self.client.create_streams([{}] * count))

    async def open(self, stream_ids: Sequence[StreamId]) -> list[Stream]:
        """Open streams at a new epoch."""
        self._epoch += 1
        return await self.client.open_streams(
            [(stream_id, StreamEpoch(self._epoch)) for stream_id in stream_ids]
        )

    async def close(self) -> None:
        """Close everything at the end of the test."""
        await self.tasks.close()
        await self.wal.close()
        await self.store.close()
        if isinstance(self.disk, SystemDisk):
            self.disk.close()

    def _on_failure(self, _: str, error: BaseException) -> None:
        self.failures.append(error)
        self.failed.set()


async def append_all(stream: Stream, payloads: Sequence[bytes]) -> None:
    """Append one record per payload, with one offset each, and wait for all."""
    await asyncio.gather(
        *[stream.append(payload, count=1, max_timestamp=number) for number, payload in enumerate(payloads)]
    )


async def read_all(stream: Stream) -> list[StreamRecord]:
    """Fetch everything from start to confirmed end, in several calls."""
    records: list[StreamRecord] = []
    offset = stream.start_offset
    while offset < stream.confirmed_offset:
        fetched = await stream.fetch(offset, 64 * KIB)
        assert fetched[0].base_offset <= offset < fetched[0].end_offset
        for record in fetched:
            assert not records or record.base_offset == records[-1].end_offset
            records.append(record)
        offset = records[-1].end_offset
    return records


def payloads_of(records: Sequence[StreamRecord]) -> list[bytes]:
    """Return the appended payloads."""
    return [bytes(record.payload) for record in records]
