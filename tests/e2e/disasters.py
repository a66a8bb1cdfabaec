"""Fault scenarios for a cluster under load: full disks, failing or slow stores, wrong clocks.

Durations are parameters.

Clients send throughout. No acknowledged record is lost, duplicated or reordered; clients see only delays and
errors that they retry; memory stays within its budget; and the cluster recovers without a restart or other
help.

`tests/e2e` runs them short, as part of `make test`; `tests/acceptance` runs them at full length.
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
"""Fills the small disks and caches below within seconds. Clients use more CPU than the cluster under test."""
GENTLE_RATE_BYTES: Final = 5e5
"""Rate for scenarios that fill nothing."""
MIB: Final = 1 << 20
HOUR_S: Final = 3_600
SMALL_CACHES: Final = {
    "log_cache_bytes_max": 8 * MIB,
    "block_cache_bytes_max": 4 * MIB,
    "upload_size_bytes_max": 2 * MIB,
}
WAITS_FOR_SPACE: Final = "ponor_journal_waits_for_space"
PATIENT: Final = {"session_timeout_ms": 120_000}
"""Suspended processes are not suspected; no scenario here is about suspension."""
SMALL_DISK_BYTES: Final = 24 * MIB
SMALL_LOG: Final = {
    # The cache is larger than the rest of the disk, so the disk fills first.
    "log_cache_bytes_max": 64 * MIB,
    "upload_size_bytes_max": 2 * MIB,
    "wal_bytes_max": 32 * MIB,
}


def the_disk_of_the_log_fills_up(store: StoreForTest, directory: Path, *, full_s: float) -> None:
    """Fill the disk first with a working store, so that the log reuses its segments, then without one, so
    that there is no space."""
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
            load.goes_on(500)  # the producers' backlog soon fills the small disk again
        load.goes_on(5_000)
        wait_for(lambda: cluster.metric("broker", WAITS_FOR_SPACE, {}) == 0, "the log has space")


def the_store_goes_down(store: StoreForTest, directory: Path, *, down_s: float, dies: bool) -> None:
    """The store crashes and is restarted, or swallows every request.

    The log cache fills, and producers wait.
    """
    server = store.server
    assert server is not None
    with _cluster_under_load(store, directory, SMALL_CACHES) as (cluster, load):
        with killed(server) if dies else silenced(server):
            load.stands_still(down_s, is_full=lambda: _appends_wait(cluster))
            held = cluster.metric("broker", "ponor_log_cache_bytes", {})
            assert held <= SMALL_CACHES["log_cache_bytes_max"] + MIB
        load.goes_on(5_000)


def the_store_becomes_slow(store: StoreForTest, directory: Path, *, slow_s: float) -> None:
    """With a store ten times slower uploads fall behind, and the backlog is uploaded after the store
    recovers."""
    assert store.server is not None
    with _cluster_under_load(store, directory, SMALL_CACHES) as (cluster, load):
        with ten_times_slower(store.server):
            before = _objects_uploaded(cluster)
            time.sleep(slow_s)
            wait_for(lambda: _objects_uploaded(cluster) > before, "a slow store still receives uploads")
        load.goes_on(5_000)
        wait_for(
            lambda: cluster.metric("broker", "ponor_upload_blocks_waiting", {}) <= 1, "uploads have caught up"
        )


def the_wall_clock_jumps(store: StoreForTest, directory: Path, *, stay_s: float) -> None:
    """Set all services' clocks an hour ahead, right, an hour back, and from one extreme to the other, with an
    active consumer group.

    An S3 server refuses requests whose clock is more than 15 minutes wrong, which looks like an unavailable
    store until the clock is right. Nothing else may be affected.
    """
    directory.mkdir(parents=True)
    clock = WallClock(directory / "wall-clock")
    changed = replace(store, environment={**store.environment, **clock.environment})
    # An hour exceeds both by far: anything based on the wall clock would expire at the first jump.
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
    """Whether the log cache is full up to its last eighth, which only waiting appends use."""
    size_bytes = SMALL_CACHES["log_cache_bytes_max"]
    return cluster.metric("broker", "ponor_log_cache_bytes", {}) > size_bytes - size_bytes // 8


def _objects_uploaded(cluster: LocalCluster) -> float:
    return cluster.metric("broker", "ponor_upload_objects_total", {})


@contextmanager
def _cluster_under_load(
    store: StoreForTest, directory: Path, settings: dict[str, int], rate_bytes: float = RATE_BYTES
) -> Iterator[tuple[LocalCluster, SteadyLoad]]:
    """Run a cluster with a load.

    Check at the end that no process restarted and every record is at its acknowledged place.
    """
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
    """One consumer in a group, polled by the scenario itself."""

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
        """Wait until the consumer receives records and commits them."""
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
