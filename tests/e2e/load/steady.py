"""A steady load beside a story: idempotent producers that go on through whatever happens, and how far they have come.

What lives here: starting and stopping the producers' processes, and looking at the partitions from outside meanwhile. A producer whose delivery
fails for good raises when the load ends: whatever the story does, clients may only see delay and errors that they retry.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.judge import Acknowledged
from tests.e2e.load.producers import CLIENT_FAMILIES, COMPRESSIONS, Assignment, Report, produce
from tests.e2e.load.readers import watermarks

PROGRESS_S_MAX: Final = 600.0
LATE_RECORDS_MAX: Final = 2_500
"""About a second of the load: what small appends may still get in when large ones wait already."""
STILL_S: Final = 2.0


def spawn_pool(workers: int) -> ProcessPoolExecutor:
    """Processes for clients; spawned, because client libraries have threads that a fork would break."""
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def collect(acknowledged: Acknowledged, runs: Iterable[tuple[str, Future[list[Report]]]]) -> None:
    """Add every producer's delivery reports."""
    for producer, future in runs:
        for number, partition, offset in future.result():
            acknowledged.add(producer, number, partition, offset)


class SteadyLoad:
    """What the story sees of the load. `acknowledged` is complete when the load has ended."""

    def __init__(self, cluster: LocalCluster, topic: str, partitions: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self.acknowledged = Acknowledged()

    def stored(self) -> int:
        """Records that are durable: the sum of the partitions' high watermarks."""
        watcher = Consumer(
            {"bootstrap.servers": self._cluster.bootstrap, "group.id": "watcher", "log_level": 2}
        )
        try:
            ends = (watermarks(watcher, self._topic, partition)[1] for partition in range(self._partitions))
            return sum(ends)
        finally:
            watcher.close()

    def goes_on(self, records: int) -> None:
        """So many records more become durable."""
        aim = self.stored() + records
        wait_for(lambda: self.stored() >= aim, f"{records} records more are stored")

    def stands_still(self, for_s: float, is_full: Callable[[], bool]) -> None:
        """Comes to a halt for so long, but for the rest that the caches still have room for.

        Args:
            is_full: whether there is no room by now. That nothing is stored for a moment says nothing: whoever produces may have had no turn.
        """
        wait_for(is_full, "there is no room any more")
        wait_for(lambda: self._gained(STILL_S) == 0, "the load comes to a halt")
        gained = self._gained(for_s)
        assert gained <= LATE_RECORDS_MAX, f"{gained} records were stored while there was no room for them"
        print(f"for {for_s:.0f} s {gained} records were stored")

    def _gained(self, within_s: float) -> int:
        before = self.stored()
        time.sleep(within_s)
        return self.stored() - before


@contextmanager
def steady_load(
    cluster: LocalCluster, topic: str, *, partitions: int, producers: int, rate_bytes: float, seed: int
) -> Iterator[SteadyLoad]:
    """Producers of two families and several compressions share the rate; inside, all of them send."""
    stop_file = cluster.directory / "stop-producing"
    stop_file.unlink(missing_ok=True)
    load = SteadyLoad(cluster, topic, partitions)
    runs: list[tuple[str, Future[list[Report]]]] = []
    started: list[Path] = []
    with spawn_pool(producers) as pool:
        for index in range(producers):
            family = CLIENT_FAMILIES[index % 2]
            name = f"{family}-{index}-{seed}"
            work = Assignment(
                cluster.bootstrap,
                topic,
                name,
                0,
                10_000_000,
                partitions,
                COMPRESSIONS[index % 5],
                rate_bytes / producers,
                str(stop_file),
            )
            runs.append((name, pool.submit(produce, family, work)))
            started.append(work.started_file)
        try:
            _wait_until_all(started, [future for _, future in runs])
            yield load
        finally:
            stop_file.touch()
        collect(load.acknowledged, runs)
    assert load.acknowledged.places, "the producers sent nothing"


def wait_for(condition: Callable[[], bool], what: str, *, s_max: float = PROGRESS_S_MAX) -> None:
    """Until the condition holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + s_max, f"not within {s_max:.0f} s: {what}"
        time.sleep(0.2)
    print(f"after {time.monotonic() - began:.1f} s {what}")


def _wait_until_all(started: list[Path], runs: list[Future[list[Report]]]) -> None:
    while not all(path.exists() for path in started):
        for run in runs:
            if run.done():
                run.result()
        time.sleep(0.05)
