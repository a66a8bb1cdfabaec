"""Latency, throughput and request rate of the object WAL with a distant store, in virtual time, for
several kinds of load.

CPU time is modelled only for reading requests, which takes a fixed time each, one after the other.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from ponor_runtime.identity import NodeId, StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_simulation.object_store import SimObjectStore
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation
from s3stream.object_wal.object_wal import ObjectWal
from s3stream.records import StreamRecord
from s3stream.settings import StorageSettings
from s3stream.stores.open_store import wrap_object_store

from libs.s3stream.tests.cluster_model import ClusterModel

_T = TypeVar("_T")
P99_SIGMAS: Final = 2.3263
"""For a standard normal distribution, 99 % of values are below this."""


class DistantStore(SimObjectStore):
    """A store with lognormal latencies. A call is applied after the share `there` of its latency."""

    p50_s = 0.030
    p99_s = 0.120
    there = 1.0

    async def call(self, operation: str, what: str, apply: Callable[[], _T]) -> _T:
        sigma = math.log(self.p99_s / self.p50_s) / P99_SIGMAS
        took_s = self.p50_s * math.exp(self._chance.gauss(0, sigma))
        self.bucket.calls[operation] += 1
        answer: asyncio.Future[_T] = self._loop.create_future()

        def arrive() -> None:
            try:
                outcome = apply()
            except ObjectStoreError as error:
                self._loop.call_later(took_s * (1 - self.there), fail, error, context=self._loop.outside)
            else:
                self._loop.call_later(took_s * (1 - self.there), tell, outcome, context=self._loop.outside)

        def tell(outcome: _T) -> None:
            if not answer.done():
                answer.set_result(outcome)

        def fail(error: ObjectStoreError) -> None:
            if not answer.done():
                answer.set_exception(error)

        self._loop.call_later(took_s * self.there, arrive, context=self._loop.outside)
        return await answer


@dataclass(frozen=True, slots=True)
class Load:
    """A load of appends.

    Attributes: record_bytes: size of each append. in_flight: appends of a producer that sends one
    more for each acknowledgement; 0: `per_s` of them at random times, or evenly. reading_s: time to
    read and validate each request of that producer, one after the other.
    """

    record_bytes: int
    in_flight: int = 0
    per_s: float = 0.0
    evenly: bool = False
    reading_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of a load. Times are milliseconds from append to acknowledgement."""

    bytes_per_s: float
    p50_ms: float
    p99_ms: float
    puts_per_s: float
    requests_per_s: float
    hedges: float
    """Hedged puts per put."""
    gets: int

    def share_of_window(self, load: Load, p50_s: float = DistantStore.p50_s) -> float:
        """Throughput as a share of the limit set by the window, when a round trip takes the store's
        median and the reading.
        """
        round_trip_s = p50_s + load.in_flight * load.reading_s
        return self.bytes_per_s * round_trip_s / (load.in_flight * load.record_bytes)


class _Producer:
    """Append to one stream, and record the time of each acknowledgement."""

    def __init__(self, wal: ObjectWal, load: Load, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._wal = wal
        self._load = load
        self._payload = bytes(load.record_bytes)
        self._end_s = self._loop.time() + seconds
        self._reader_free_s = 0.0
        self._offset = 0
        self.took_s: list[float] = []

    async def run(self, chance: random.Random) -> None:
        load = self._load
        for _ in range(load.in_flight):
            self._append()
        while load.per_s and self._loop.time() < self._end_s:
            self._append()
            await asyncio.sleep(1 / load.per_s if load.evenly else chance.expovariate(load.per_s))
        await asyncio.sleep(self._end_s - self._loop.time() + 1)

    def _append(self) -> None:
        began_s = self._loop.time()
        self._offset += 1
        record = StreamRecord(StreamId(5), StreamEpoch(2), self._offset, 1, 77, self._payload)
        self._wal.append([record.encode_header(), record.payload], lambda error: self._told(began_s, error))

    def _told(self, began_s: float, error: BaseException | None) -> None:
        assert error is None, error
        self.took_s.append(self._loop.time() - began_s)
        if self._load.in_flight and self._loop.time() < self._end_s:
            self._reader_free_s = max(self._reader_free_s, self._loop.time()) + self._load.reading_s
            self._loop.call_at(self._reader_free_s, self._append)


def run_load(
    load: Load,
    *,
    seconds: float,
    settings: StorageSettings | None = None,
    store: type[DistantStore] = DistantStore,
    seed: int = 1,
) -> Figures:
    """Run one producer alone on a log for this long; return the results."""
    simulation = Simulation(seed)
    distant = store(simulation.loop, str(seed), simulation.trace)
    figures: list[Figures] = []

    async def live(runtime: Runtime) -> None:
        tasks = BackgroundTasks(runtime.fail_stop)
        node = ClusterModel(runtime.clock).register(NodeId(1))
        wal = await ObjectWal.open(
            store=wrap_object_store(distant, runtime=runtime),
            name=await node.open_wal(),
            manager=node,
            settings=settings if settings is not None else StorageSettings(),
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            tasks=tasks,
        )
        producer = _Producer(wal, load, seconds)
        await producer.run(simulation.chance)
        figures.append(_figures(load, seconds, producer.took_s, wal.next_sequence, distant))
        await wal.close()
        await tasks.close()

    process = simulation.process("broker", live)

    async def scenario() -> None:
        process.start()
        await wait_until(lambda: not process.running, poll_s=1, timeout_s=seconds + 60)
        if process.failure is not None:
            raise process.failure

    simulation.run(scenario())
    return figures[0]


def _figures(load: Load, seconds: float, took_s: list[float], puts: int, store: DistantStore) -> Figures:
    ordered = sorted(took_s)
    requests = store.bucket.calls["put"]
    return Figures(
        bytes_per_s=len(ordered) * load.record_bytes / seconds,
        p50_ms=1000 * ordered[len(ordered) // 2],
        p99_ms=1000 * ordered[len(ordered) * 99 // 100],
        puts_per_s=puts / seconds,
        requests_per_s=requests / seconds,
        hedges=(requests - puts) / puts,
        gets=store.bucket.calls["get"],
    )
