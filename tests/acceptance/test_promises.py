"""The project's promises at full size. Each test takes minutes, so they have their own target,
`make acceptance`.

The environment selects smaller sizes: PONOR_RECORDS, PONOR_GIGABYTES.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.bulk import produce_bulk, read_bulk
from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.producers import CLIENT_FAMILIES
from tests.e2e.load.steady import spawn_pool
from tests.e2e.scenarios import (
    bytes_read_from_store,
    create_topic,
    produce_mixed,
    produce_through_kills,
    put_class_requests,
    read_and_judge,
    recovery_lines,
)
from tests.e2e.stores import STORES, StoreForTest, store_for_test

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

RECORDS = int(os.environ.get("PONOR_RECORDS", "1000000"))
GIGABYTES = float(os.environ.get("PONOR_GIGABYTES", "4"))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreForTest]:
    with store_for_test(request.param, tmp_path) as prepared:
        yield prepared


def cluster_on(store: StoreForTest, directory: Path, **settings: object) -> LocalCluster:
    return LocalCluster(
        directory, settings=settings, arguments=store.arguments, environment=store.environment
    )


def test_a_million_records_of_three_client_families(store: StoreForTest, tmp_path: Path) -> None:
    with cluster_on(store, tmp_path) as cluster:
        create_topic(cluster, "million", 32)
        acknowledged = produce_mixed(cluster, "million", records=RECORDS, partitions=32)
        read_and_judge(cluster, "million", 32, acknowledged, CLIENT_FAMILIES)


def test_old_data_is_read_from_objects(store: StoreForTest, tmp_path: Path) -> None:
    caches = {"log_cache_bytes_max": 64 << 20, "block_cache_bytes_max": 32 << 20}
    total = 8 * sum(caches.values())
    cluster = cluster_on(store, tmp_path, **caches)
    cluster.start()
    create_topic(cluster, "history", 16)
    produce_bulk(cluster.bootstrap, "history", partitions=16, total_bytes=total)
    cluster.stop()
    cluster.start()
    before = bytes_read_from_store(cluster)
    assert read_bulk(cluster.bootstrap, "history", partitions=16) >= total
    share = (bytes_read_from_store(cluster) - before) / total
    cluster.stop()
    print(f"\n{share:.0%} of the bytes were read at the store")
    assert share >= 0.75


def test_twenty_kills_of_the_broker_and_five_of_everything(store: StoreForTest, tmp_path: Path) -> None:
    kills = [("broker",)] * 20 + [("controller",)] * 5 + [("gc",)] * 5 + [("controller", "broker", "gc")] * 5
    with cluster_on(store, tmp_path, upload_size_bytes_max=16 << 20) as cluster:
        create_topic(cluster, "kills", 32)
        acknowledged = produce_through_kills(
            cluster,
            "kills",
            partitions=32,
            producers=4,
            rate_bytes=5e6,
            kills=kills,
            pause_s=(1.0, 4.0),
            seed=2,
        )
        read_and_judge(cluster, "kills", 32, acknowledged, ["librdkafka"])
        print("\n" + "\n".join(recovery_lines(cluster)[-5:]))


def test_cost_follows_bytes_not_partitions(store: StoreForTest, tmp_path: Path) -> None:
    """The same rate to 1 and to 1,000 partitions; the first minute does not count."""
    rate = 40e6
    cost = {}
    for partitions in (1, 1000):
        with cluster_on(store, tmp_path / str(partitions)) as cluster:
            create_topic(cluster, "cost", partitions)
            with spawn_pool(1) as pool:
                total = int(GIGABYTES * 1e9 + 60 * rate)
                work = pool.submit(
                    produce_bulk,
                    cluster.bootstrap,
                    "cost",
                    partitions=partitions,
                    total_bytes=total,
                    rate_bytes=rate,
                )
                time.sleep(60)
                before = put_class_requests(cluster)
                work.result()
                cost[partitions] = put_class_requests(cluster) - before
    print(f"\nPUT-class requests for {GIGABYTES:.0f} GB: {cost}")
    assert abs(cost[1] - cost[1000]) <= 0.1 * max(cost.values()), cost
