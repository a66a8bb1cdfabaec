"""Stories of a cluster whose surroundings fail for a while, under load, with durations as parameters.

In every one clients go on sending. Nothing that was acknowledged is lost, doubled or reordered; clients see delay and errors that they retry by themselves; memory stays
within its budget; and when the trouble is over, everything goes on without a restart or any other help.

`tests/e2e` tells them short, as part of `make test`; `tests/acceptance` at the length that the project promises.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.steady import SteadyLoad, steady_load, wait_for
from tests.e2e.scenarios import create_topic, read_and_judge
from tests.e2e.stores import StoreForTest
from tests.e2e.surroundings import WallClock, killed, silenced, small_disk, ten_times_slower

TOPIC: Final = "orders"
PARTITIONS: Final = 8
RATE_BYTES: Final = 2e6
"""Fills what is small below within seconds: the load costs more than all that it is there to burden."""
GENTLE_RATE_BYTES: Final = 5e5
"""Where nothing has to fill up."""
MIB: Final = 1 << 20
HOUR_S: Final = 3_600
SMALL_CACHES: Final = {
    "log_cache_bytes_max": 8 * MIB,
    "block_cache_bytes_max": 4 * MIB,
    "upload_size_bytes_max": 2 * MIB,
}
WAITS_FOR_SPACE: Final = "ponor_journal_waits_for_space"
PATIENT: Final = {"session_timeout_ms": 120_000}
"""A process that has no turn for long is not missed: no story here is about that."""
SMALL_DISK_BYTES: Final = 24 * MIB
SMALL_LOG: Final = {
    # The cache is larger than what is left of the disk: it is the disk that is full.
    "log_cache_bytes_max": 64 * MIB,
    "upload_size_bytes_max": 2 * MIB,
    "wal_bytes_max": 32 * MIB,
}


def the_disk_of_the_log_fills_up(store: StoreForTest, directory: Path, *, full_s: float) -> None:
    """First the store works: the log goes on in the segments that it has. Then it does not, and there is no space at all."""
    server = store.server
    assert server is not None
    with (
        small_disk(directory / "data" / "broker-0", SMALL_DISK_BYTES) as disk,
        _cluster_under_load(store, directory, SMALL_LOG) as (cluster, load),
    ):
        disk.fill()
        load.goes_on(2_000)
        with silenced(server):
            load.stands_still(full_s, is_full=lambda: cluster.metric("broker", WAITS_FOR_SPACE, {}) == 1)
            assert cluster.metric("broker", WAITS_FOR_SPACE, {}) == 1
            disk.give_back()
            load.goes_on(500)  # and what producers had to keep soon fills the small disk again
        load.goes_on(5_000)
        wait_for(lambda: cluster.metric("broker", WAITS_FOR_SPACE, {}) == 0, "the log has space")


def the_store_goes_down(store: StoreForTest, directory: Path, *, down_s: float, dies: bool) -> None:
    """It dies and is started again, or swallows every request in silence. The log cache fills, and producers wait."""
    server = store.server
    assert server is not None
    with _cluster_under_load(store, directory, SMALL_CACHES) as (cluster, load):
        with killed(server) if dies else silenced(server):
            load.stands_still(down_s, is_full=lambda: _appends_wait(cluster))
            held = cluster.metric("broker", "ponor_log_cache_bytes", {})
            assert held <= SMALL_CACHES["log_cache_bytes_max"] + MIB
        load.goes_on(5_000)


def the_store_becomes_slow(store: StoreForTest, directory: Path, *, slow_s: float) -> None:
    """Ten times slower: less is stored, but more and more of it, and what has gathered is uploaded when the store is well again."""
    assert store.server is not None
    with _cluster_under_load(store, directory, SMALL_CACHES) as (cluster, load):
        with ten_times_slower(store.server):
            before = _objects_uploaded(cluster)
            time.sleep(slow_s)
            wait_for(lambda: _objects_uploaded(cluster) > before, "a slow store is no dead one")
        load.goes_on(5_000)
        wait_for(
            lambda: cluster.metric("broker", "ponor_upload_blocks_waiting", {}) <= 1, "uploads have caught up"
        )


def the_wall_clock_jumps(store: StoreForTest, directory: Path, *, stay_s: float) -> None:
    """An hour ahead, right, an hour back, and from one end to the other, in all services at once, with a consumer group at work.

    An S3 server refuses requests of a clock that is more than 15 minutes wrong: that is a store which is away, until the clock is right. Nothing else notices.
    """
    directory.mkdir(parents=True)
    clock = WallClock(directory / "wall-clock")
    changed = replace(store, environment={**store.environment, **clock.environment})
    # An hour is far beyond these two: whatever followed the wall clock would be over at the first jump.
    settings = {**SMALL_CACHES, "prepared_ttl_ms": 120_000, "destroy_delay_ms": 5_000}
    with (
        _cluster_under_load(changed, directory, settings, GENTLE_RATE_BYTES) as (cluster, load),
        _group(cluster) as group,
    ):
        group.goes_on()
        for hours in (1, 0, -1, 0, 1, -1, 0):
            clock.set_off_by(hours * HOUR_S)
            time.sleep(stay_s)
            if hours == 0 or store.server is None:
                load.goes_on(500)
                group.goes_on()
        assert group.assignments == 1, "the group was rebalanced"
        cluster.run("object", "verify")


def _appends_wait(cluster: LocalCluster) -> bool:
    """Of the log cache, an eighth is charged only by those that the rest has no room for."""
    size_bytes = SMALL_CACHES["log_cache_bytes_max"]
    return cluster.metric("broker", "ponor_log_cache_bytes", {}) > size_bytes - size_bytes // 8


def _objects_uploaded(cluster: LocalCluster) -> float:
    return cluster.metric("broker", "ponor_upload_objects_total", {})


@contextmanager
def _cluster_under_load(
    store: StoreForTest, directory: Path, settings: dict[str, int], rate_bytes: float = RATE_BYTES
) -> Iterator[tuple[LocalCluster, SteadyLoad]]:
    """A cluster with a load; when the story is over no process may have been restarted, and every record must be where it was acknowledged."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(
        directory, settings={**settings, **PATIENT}, arguments=store.arguments, environment=store.environment
    )
    with cluster:
        create_topic(cluster, TOPIC, PARTITIONS)
        with steady_load(
            cluster, TOPIC, partitions=PARTITIONS, producers=2, rate_bytes=rate_bytes, seed=1
        ) as load:
            load.goes_on(1_000)
            yield cluster, load
        for process in cluster.describe()["processes"]:
            assert process["restarts"] == 0, f"{process['role']} was restarted"
        read_and_judge(cluster, TOPIC, PARTITIONS, load.acknowledged, ["librdkafka"])


class _Group:
    """One consumer in a group, polled by the story itself."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.assignments = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "watchers",
                "session.timeout.ms": 120_000,
                "auto.offset.reset": "latest",
                "log_level": 2,
            }
        )
        self.consumer.subscribe([TOPIC], on_assign=self._assigned)

    def _assigned(self, _consumer: object, _partitions: object) -> None:
        self.assignments += 1

    def goes_on(self) -> None:
        """It gets records, and may commit them."""
        wait_for(self._commits_something, "the group's consumer gets records and commits them")

    def _commits_something(self) -> bool:
        message = self.consumer.poll(1.0)
        if message is None or message.error() is not None:
            return False
        self.consumer.commit(message=message, asynchronous=False)
        return True


@contextmanager
def _group(cluster: LocalCluster) -> Iterator[_Group]:
    group = _Group(cluster)
    try:
        yield group
    finally:
        group.consumer.close()
