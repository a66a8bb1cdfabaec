"""CPU of the storage write path alone: appends → log (synced) → cache → uploads to a directory
store, without sockets and Kafka.

python -m tests.benchmarks.storage_write DIRECTORY [--case 100B|16KiB|64KiB] [--mib N] [--requests
N] [--turn N] [--dry]

Prints, per case, CPU by thread and per request and GB, page faults, groups, and the same loop
without storage for comparison (`--dry`). Wall-clock times depend on other load of the machine, CPU
times much less. The load is a hundredth of a broker's: 16 streams, one append in flight each; each
turn of the event loop appends `--turn` of them, as if requests arrived gradually.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import shutil
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

import uvloop
from ponor_runtime.identity import StreamEpoch
from ponor_runtime.network import Network
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry
from s3stream.client import StreamClient
from s3stream.file_wal import FileWal
from s3stream.settings import MIB, StorageSettings
from s3stream.stores.open_store import open_object_store
from s3stream.stream import Stream

from libs.s3stream.tests.cluster_model import ClusterModel

STREAMS: Final = 16
POOL_BYTES: Final = 64 * MIB
"""Size of the pool of payloads, so that they are not in a CPU cache and their creation is not measured."""

CASES: Final = {"100B": 100, "16KiB": 16 * 1024, "64KiB": 64 * 1024}


@dataclass(frozen=True)
class Usage:
    """Resources that the process has used so far."""

    cpu_s: float
    threads_s: dict[str, float]
    faults: int
    switches: int

    @classmethod
    def now(cls) -> Usage:
        threads: dict[str, float] = {}
        for task in Path("/proc/self/task").iterdir():
            name = "loop" if int(task.name) == os.getpid() else "disk threads"
            threads[name] = threads.get(name, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1e9
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.process_time(), threads, used.ru_minflt, used.ru_nvcsw)


class Load:
    """A closed loop over streams: an acknowledged stream gets the next append, a few streams per turn."""

    def __init__(self, streams: list[Stream] | None, payload_bytes: int, per_turn: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._streams = streams
        count = max(POOL_BYTES // payload_bytes, 1) if payload_bytes >= 1024 else 4096
        self._pool = [memoryview(bytearray(b"\x5a" * payload_bytes)) for _ in range(count)]
        self._per_turn = per_turn
        self._ready: deque[int] = deque()
        self._turning = False
        self._left = 0
        self._pending = 0
        self._done: asyncio.Future[None] = self._loop.create_future()

    async def run(self, requests: int) -> None:
        self._left, self._pending = requests, requests
        self._done = self._loop.create_future()
        self._ready.extend(range(STREAMS))
        self._wake()
        await self._done

    def _wake(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        for _ in range(min(self._per_turn, len(self._ready))):
            number = self._ready.popleft()
            if self._left:
                self._left -= 1
                self._append(number)
        self._turning = False
        if self._ready:
            self._wake()

    def _append(self, number: int) -> None:
        told = partial(self._told, number)
        payload = self._pool[self._left % len(self._pool)]
        if self._streams is None:
            self._loop.call_soon(told, None)
        else:
            self._streams[number].append_nowait(payload, count=1, max_timestamp=0, on_durable=told)

    def _told(self, number: int, error: BaseException | None) -> None:
        assert error is None
        self._pending -= 1
        if not self._pending:
            self._done.set_result(None)
        self._ready.append(number)
        self._wake()


async def main(arguments: argparse.Namespace) -> None:
    telemetry = Telemetry()
    runtime = Runtime(SystemClock(), SystemRandomness(), SystemDisk(), cast(Network, None), telemetry)
    directory = Path(arguments.directory) / "storage-write"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    settings = StorageSettings()
    ports = ClusterModel(runtime.clock, prepared_ttl_ms=settings.prepared_ttl_ms).register()
    store = await open_object_store(f"file://{directory}/store", runtime=runtime, environment={})
    wal = await FileWal.open(
        runtime.disk, directory / "wal", identity=bytes(16), settings=settings, telemetry=telemetry
    )
    tasks = BackgroundTasks(lambda name, error: print(f"{name} failed: {error!r}"))
    client = await StreamClient.start(
        runtime=runtime, store=store, wal=wal, streams=ports, objects=ports, settings=settings, tasks=tasks
    )
    ids = await client.create_streams([{}] * STREAMS)
    streams = await client.open_streams([(stream_id, StreamEpoch(1)) for stream_id in ids])
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    for name in [arguments.case] if arguments.case else list(CASES):
        size = CASES[name]
        requests = arguments.requests if size < 1024 else arguments.mib * MIB // size
        load = Load(None if arguments.dry else streams, size, arguments.turn)
        await load.run(requests if arguments.warm else 1000)
        frames = sum(value for _, value in telemetry.counters("ponor_journal_frames_total"))
        before, started = Usage.now(), time.monotonic()
        await load.run(requests)
        after, seconds = Usage.now(), time.monotonic() - started
        frames = sum(value for _, value in telemetry.counters("ponor_journal_frames_total")) - frames
        report(name, requests, size, before, after, seconds, frames)
    await client.close()
    await tasks.close()
    await store.close()
    shutil.rmtree(directory)


def report(
    name: str, requests: int, size: int, before: Usage, after: Usage, seconds: float, frames: int
) -> None:
    """One line for the process, one for its threads."""
    cpu_s = after.cpu_s - before.cpu_s
    gigabytes = requests * size / 1e9
    print(
        f"{name:6} {cpu_s * 1e6 / requests:7.1f} us/request {cpu_s / gigabytes:7.2f} CPU s/GB "
        f" {requests / seconds:8.0f} requests/s  group {requests / max(frames, 1):5.1f}  faults"
        f" {(after.faults - before.faults) / gigabytes / 1000:6.0f} k/GB"
        f"  switches {(after.switches - before.switches) / requests:5.2f}/request",
        flush=True,
    )
    used = {key: value - before.threads_s.get(key, 0.0) for key, value in after.threads_s.items()}
    shares = [f"{key} {value * 1e6 / requests:.1f}" for key, value in sorted(used.items()) if value > 0.001]
    print("       us/request by thread: " + ", ".join(shares), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", help="where log and store may be made; on the disk to be measured")
    parser.add_argument("--case", choices=list(CASES))
    parser.add_argument("--mib", type=int, default=1024, help="MiB of the cases with large payloads")
    parser.add_argument("--requests", type=int, default=60_000, help="requests of the case with small ones")
    parser.add_argument("--turn", type=int, default=3, help="streams that append in one turn of the loop")
    parser.add_argument("--warm", action="store_true", help="run everything twice, and measure the second")
    parser.add_argument("--dry", action="store_true", help="without storage: the cost of this loop itself")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(parser.parse_args()))
