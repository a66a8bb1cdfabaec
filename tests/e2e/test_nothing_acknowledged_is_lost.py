"""Small runs of the scenarios of `make acceptance`: real clients and real kills.

Kills run on a directory store, everything else on the S3 server; acceptance uses both stores for all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ponor_metadata.client.store_marker import PREFIX as CLUSTERS_PREFIX

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.producers import CLIENT_FAMILIES, Assignment, produce
from tests.e2e.load.readers import read_all
from tests.e2e.scenarios import (
    bytes_read_from_store,
    create_topic,
    produce_mixed,
    produce_through_kills,
    put_class_requests,
    read_and_judge,
    recovery_lines,
)
from tests.e2e.stores import STORES, StoreForTest, store_on
from tests.integration.seaweed_server import SeaweedServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]

SMALL_CACHES = {
    "log_cache_bytes_max": 16 << 20,
    "block_cache_bytes_max": 8 << 20,
    "upload_size_bytes_max": 4 << 20,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as started:
        yield started


@pytest.fixture
def store(request: pytest.FixtureRequest) -> StoreForTest:
    """A directory, or a prefix on the server that all tests share."""
    if request.param == "directory":
        return StoreForTest()
    return store_on(request.getfixturevalue("server"), request.node.originalname)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_three_client_families_with_every_compression(store: StoreForTest, tmp_path: Path) -> None:
    with LocalCluster(
        tmp_path, settings=SMALL_CACHES, arguments=store.arguments, environment=store.environment
    ) as cluster:
        create_topic(cluster, "mixed", 32)
        acknowledged = produce_mixed(cluster, "mixed", records=8_000, partitions=32)
        read_and_judge(cluster, "mixed", 32, acknowledged, CLIENT_FAMILIES)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_old_data_is_read_from_objects_after_a_restart(store: StoreForTest, tmp_path: Path) -> None:
    """With data of at least four times the minimum cache sizes, a new reader after a restart and WAL trim
    gets everything.

    Most bytes come from the store.
    """
    settings = {
        "log_cache_bytes_max": 8 << 20,
        "block_cache_bytes_max": 1 << 20,
        "upload_size_bytes_max": 2 << 20,
    }
    cluster = LocalCluster(
        tmp_path, settings=settings, arguments=store.arguments, environment=store.environment
    )
    cluster.start()
    create_topic(cluster, "cold", 8)
    reports = produce("librdkafka", Assignment(cluster.bootstrap, "cold", "p", 0, 52_000, 8))
    cluster.stop()
    cluster.start()
    before = bytes_read_from_store(cluster)
    seen = read_all("librdkafka", cluster.bootstrap, "cold", 8)
    from_store = bytes_read_from_store(cluster) - before
    listed = json.loads(cluster.run("object", "ls", "-o", "json"))
    cluster.stop()
    assert seen.count == len(reports) == 52_000
    written = sum(row["size_bytes"] for row in listed if row["state"] == "committed")
    assert written > 4 * (9 << 20), "the data must be at least four times the caches"
    assert from_store >= 0.75 * written


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_kills_under_load_lose_nothing(store: StoreForTest, tmp_path: Path) -> None:
    settings = {**SMALL_CACHES, "upload_size_bytes_max": 1 << 20}
    cluster = LocalCluster(
        tmp_path, settings=settings, arguments=store.arguments, environment=store.environment
    )
    with cluster:
        create_topic(cluster, "kills", 32)
        kills = [("broker",), ("controller",), ("controller", "broker", "gc")]
        acknowledged = produce_through_kills(
            cluster,
            "kills",
            partitions=32,
            producers=4,
            rate_bytes=1e6,
            kills=kills,
            pause_s=(1.0, 2.0),
            seed=7,
        )
        read_and_judge(cluster, "kills", 32, acknowledged, ["librdkafka"])
    assert len(recovery_lines(cluster)) >= 2


def test_garbage_of_interrupted_uploads_is_collected(server: SeaweedServer, tmp_path: Path) -> None:
    """Uploads interrupted by SIGKILL leave prepared objects.

    GC deletes them after their lease and keeps the committed ones.
    """
    settings = {
        **SMALL_CACHES,
        "prepared_ttl_ms": 2000,
        "destroy_delay_ms": 1000,
        "upload_size_bytes_max": 1 << 18,
    }
    prefix = "garbage"
    store = store_on(server, prefix)
    cluster = LocalCluster(
        tmp_path, settings=settings, arguments=store.arguments, environment=store.environment
    )
    with cluster:
        create_topic(cluster, "gc", 8)
        acknowledged = produce_through_kills(
            cluster,
            "gc",
            partitions=8,
            producers=2,
            rate_bytes=2e6,
            kills=[("broker",)] * 3,
            pause_s=(0.5, 1.5),
            seed=3,
        )
        deadline = time.monotonic() + 600
        while True:
            committed = {
                row["key"]
                for row in json.loads(cluster.run("object", "ls", "-o", "json"))
                if row["state"] == "committed"
            }
            keys = {key.removeprefix(f"{prefix}/") for key in server.objects(f"{prefix}/")}
            stored = {key for key in keys if not key.startswith(CLUSTERS_PREFIX)}
            if stored == committed:
                break
            assert time.monotonic() < deadline, (
                f"store has {len(stored - committed)} more, misses {len(committed - stored)}"
            )
            time.sleep(1)
        read_and_judge(cluster, "gc", 8, acknowledged, ["librdkafka"])


def test_requests_follow_bytes_not_partitions(tmp_path: Path) -> None:
    """The same bytes over 1 and over 200 partitions cost the same PUT-class requests, within 10 %."""
    cost = {}
    for partitions in (1, 200):
        cluster = LocalCluster(
            tmp_path / str(partitions),
            settings={
                "upload_size_bytes_max": 2 << 20,
                "log_cache_bytes_max": 16 << 20,
                # Only size starts an upload here, regardless of time.
                "upload_interval_ms": 86_400_000,
            },
        )
        with cluster:
            create_topic(cluster, "cost", partitions)
            before = put_class_requests(cluster)
            produce(
                "librdkafka",
                Assignment(
                    cluster.bootstrap,
                    "cost",
                    "p",
                    0,
                    60_000,
                    partitions,
                    rate_bytes=12.5e6,
                    batch_bytes_max=64 << 10,
                ),
            )
            cost[partitions] = put_class_requests(cluster) - before
    assert cost[1] >= 15
    assert abs(cost[1] - cost[200]) <= 0.1 * cost[1] + 2, cost
