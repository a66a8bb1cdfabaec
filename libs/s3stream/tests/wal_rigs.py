"""One interface to both write-ahead logs, for the conformance suite: create a log, crash its
process, recover it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, cast

from ponor_runtime.network import Network
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry
from s3stream.file_wal import FileWal
from s3stream.object_wal.object_wal import ObjectWal
from s3stream.object_wal.walk import WalWalk
from s3stream.ports import OpenWal
from s3stream.records import StreamRecord
from s3stream.settings import KIB, MIB, StorageSettings
from s3stream.stores.policy import PolicyObjectStore
from s3stream.stores.retrying import Retries, RetrySettings
from s3stream.wal import WriteAheadLog

from libs.s3stream.tests.cluster_model import NODE, ClusterModel, ClusterNode
from libs.s3stream.tests.store_rig import MemoryObjectStore


def wal_settings(**changes: Any) -> StorageSettings:
    values: dict[str, Any] = {
        "wal_bytes_max": 2 * MIB,
        "wal_queue_bytes_max": 256 * KIB,
        "wal_recovery_bytes_max": 2 * MIB,
        "log_cache_bytes_max": 8 * MIB,
        "wal_requests_per_s_max": 10_000.0,
        "upload_retry_ms_max": 10,
    }
    return StorageSettings(**{**values, **changes})


SETTINGS = wal_settings()


def system_runtime(disk: SystemDisk | None = None) -> Runtime:
    return Runtime(
        SystemClock(), SystemRandomness(), cast(SystemDisk, disk), cast(Network, None), Telemetry()
    )


def append(wal: WriteAheadLog, *records: StreamRecord) -> tuple[int, asyncio.Future[None]]:
    """Append records as one entry; return its number, and a future of its result."""
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: BaseException | None) -> None:
        durable.set_result(None) if error is None else durable.set_exception(error)

    parts = [part for each in records for part in (each.encode_header(), each.payload)]
    return wal.append(parts, settle), durable


class WalRig(ABC):
    """One node's log across its processes."""

    @abstractmethod
    async def opened(self) -> WriteAheadLog:
        """Open the log in a new process."""

    @abstractmethod
    async def left(self) -> list[StreamRecord]:
        """Return the entries that the previous process left above its trim point. No log is open."""

    @abstractmethod
    async def end(self) -> None:
        """Clean up."""


class FileWalRig(WalRig):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = SystemDisk()

    async def opened(self) -> FileWal:
        return await FileWal.open(
            self.disk, self.path / "wal", identity=bytes(16), settings=SETTINGS, telemetry=Telemetry()
        )

    async def left(self) -> list[StreamRecord]:
        wal = await self.opened()
        found = [record async for _, record in wal.recover()]
        await wal.close()
        return found

    async def end(self) -> None:
        self.disk.close()


class ObjectWalRig(WalRig):
    def __init__(self, settings: StorageSettings = SETTINGS) -> None:
        self.settings = settings
        self.store = MemoryObjectStore()
        self.runtime = system_runtime()
        self.cluster = ClusterModel(self.runtime.clock)
        self.node: ClusterNode
        self.failures: list[BaseException] = []
        self.tasks = BackgroundTasks(lambda _, error: self.failures.append(error))

    def retried(self, **changes: int) -> PolicyObjectStore:
        retries = Retries(
            clock=self.runtime.clock,
            randomness=self.runtime.randomness,
            telemetry=self.runtime.telemetry,
            settings=RetrySettings(
                **{"attempts_max": 3, "backoff_ms_first": 1, "backoff_ms_max": 2, **changes}
            ),
        )
        return PolicyObjectStore(self.store, [retries])

    async def opened(self, **changes: Any) -> ObjectWal:
        self.node = self.cluster.register()
        return await ObjectWal.open(
            store=self.retried(),
            name=await self.node.open_wal(),
            manager=self.node,
            settings=self.settings,
            clock=self.runtime.clock,
            randomness=self.runtime.randomness,
            telemetry=self.runtime.telemetry,
            tasks=self.tasks,
            **changes,
        )

    async def left(self) -> list[StreamRecord]:
        node = self.cluster.register()
        found: list[StreamRecord] = []
        for wal in self.cluster.assign_wals(NODE, node):
            found.extend([record for slot in await self.walk(wal) for record in slot])
        return found

    async def walk(self, wal: OpenWal) -> list[list[StreamRecord]]:
        """Return the records of each slot."""
        walk = WalWalk(
            store=self.retried(),
            wal=wal,
            randomness=self.runtime.randomness,
            telemetry=self.runtime.telemetry,
            hedge_ms=1_000,
            reads_in_flight_max=4,
            bytes_in_flight_max=1 * MIB,
        )
        return [slot.records or [] async for slot in walk.slots()]

    async def end(self) -> None:
        await self.tasks.close()
        assert not self.failures, self.failures
