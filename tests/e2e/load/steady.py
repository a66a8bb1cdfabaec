"""A steady load during a scenario: idempotent producers that run through all faults, and their progress.

The producers run in separate processes; the partitions' high watermarks show the progress. A permanent
delivery failure raises at the end of the load: clients may see only delays and errors that they retry.
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
"""About a second of the load: small appends that may still be accepted while large ones already wait."""
STILL_S: Final = 2.0


def spawn_pool(workers: int) -> ProcessPoolExecutor:
    """Create processes for clients.

    Spawned, because client libraries have threads, which fork does not support.
    """
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def collect(acknowledged: Acknowledged, runs: Iterable[tuple[str, Future[list[Report]]]]) -> None:
    """Add every producer's delivery reports."""
    for producer, future in runs:
        for number, partition, offset in future.result():
            acknowledged.add(producer, number, partition, offset)


class SteadyLoad:
    """Progress of the load. `acknowledged` is complete after the load has ended."""

    def __init__(self, cluster: LocalCluster, topic: str, partitions: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self.acknowledged = Acknowledged()

    def stored(self) -> int:
        """Number of durable records: the sum of the partitions' high watermarks."""
        watcher = Consumer(
            {"bootstrap.servers": self._cluster.bootstrap, "group.id": "watcher", "log_level": 2}
        )
        try:
            ends = (watermarks(watcher, self._topic, partition)[1] for partition in range(self._partitions))
            return sum(ends)
        finally:
            watcher.close()

    def goes_on(self, records: int) -> None:
        """Wait until `records` more records are durable."""
        aim = self.stored() + records
        wait_for(lambda: self.stored() >= aim, f"{records} records more are stored")

    def stands_still(self, for_s: float, is_full: Callable[[], bool]) -> None:
        """Check that the load stops for `for_s`, except for small appends that still fit into the caches.

        Args:
            is_full: whether there is no room left. A short time without progress is not enough: producers may
                be slow.
        """
        wait_for(is_full, "there is no room left")
        wait_for(lambda: self._gained(STILL_S) == 0, "the load stops")
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
    """Run producers of two families and several codecs, which share the rate, for the duration of the
    block.
    """
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
    """Wait until the condition holds."""
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
