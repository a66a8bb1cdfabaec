"""Brokers join and leave under load: a thousand partitions are drained from one of three; one
broker becomes three and one again.

PONOR_DRAIN_PARTITIONS (1000) sets the number of partitions.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import PartitionPlace, places_of

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.numbered import judge_numbered
from tests.e2e.load.paced import Paced, paced
from tests.e2e.load.producers import CLIENT_FAMILIES
from tests.e2e.load.quorum import percentile
from tests.e2e.load.steady import steady_load
from tests.e2e.scenarios import create_topic, read_and_judge
from tests.integration.seaweed_server import SeaweedServer

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(1800)]

DRAINED = int(os.environ.get("PONOR_DRAIN_PARTITIONS", "1000"))
DRAIN_S_MAX = 20.0
EVEN_S_MAX = 30.0
EVEN_SHARE = 0.2
EVEN_BYTES_PER_S = 256 * 1024
"""Brokers are balanced when none exceeds the mean by this share, or by balance_in_bytes_per_s_min."""
WATCHED = 6
RATE_BYTES = 6e6
TOPIC = "load"


@contextmanager
def cluster_of(brokers: int, tmp_path: Path, *settings: str) -> Iterator[LocalCluster]:
    with SeaweedServer(tmp_path / "s3") as store:
        arguments = ["--brokers", str(brokers), "--wal", "object", "--object-store", store.url("ponor")]
        for setting in settings:
            arguments += ["--set", setting]
        with LocalCluster(tmp_path / "ponor", arguments=arguments, environment=store.environment) as cluster:
            yield cluster


def places(bootstrap: str, topic: str = TOPIC) -> list[PartitionPlace]:
    with KafkaClient(bootstrap) as client:
        return places_of(client, [topic])


def shown(latencies_s: list[float]) -> str:
    return (
        f"p50 {1000 * percentile(latencies_s, 0.5):.0f} ms, p99 {1000 * percentile(latencies_s, 0.99):.0f} ms"
    )


def test_a_thousand_partitions_are_drained_from_one_of_three_brokers(tmp_path: Path) -> None:
    with cluster_of(3, tmp_path, "balance_interval_ms=600000") as cluster:
        bootstrap = cluster.describe()["bootstrap"]
        create_topic(cluster, TOPIC, 3 * DRAINED)
        leaving = cluster.process("broker", 0)["node_id"]
        stay = [place.partition for place in places(bootstrap) if place.leader_id != leaving]
        go = [place.partition for place in places(bootstrap) if place.leader_id == leaving]
        assert len(go) == DRAINED
        with ExitStack() as stack:
            running = [
                stack.enter_context(_watched(bootstrap, tmp_path, partition))
                for partition in (*go[: WATCHED // 2], *stay[: WATCHED // 2])
            ]
            time.sleep(5.0)
            began_ns = time.monotonic_ns()
            cluster.run("node", "stop", "broker", "0")
            ended_ns = time.monotonic_ns()
            time.sleep(2.0)
        took_s = (ended_ns - began_ns) / 1e9
        print(
            f"{DRAINED} partitions drained in {took_s:.1f} s, the process's end and the command's start"
            " included"
        )
        moved, still = running[: WATCHED // 2], running[WATCHED // 2 :]
        print(f"pauses of moved partitions: {[round(each.pause_s(began_ns, ended_ns), 2) for each in moved]}")
        latencies = [latency for each in still for latency in _between(each, began_ns, ended_ns)]
        before = [latency for each in still for latency in _between(each, 0, began_ns)]
        print(f"partitions that stayed: {shown(latencies)} during the drain, {shown(before)} before")
        bootstrap = ",".join(cluster.describe()["bootstrap"].split(",")[1:])
        assert leaving not in {place.leader_id for place in places(bootstrap)}
        for each in running:
            judge_numbered(bootstrap, TOPIC, each)
        assert took_s <= DRAIN_S_MAX


def test_one_broker_becomes_three_and_one_again(tmp_path: Path) -> None:
    partitions = 24
    with cluster_of(1, tmp_path) as cluster:
        create_topic(cluster, TOPIC, partitions)
        with steady_load(
            cluster, TOPIC, partitions=partitions, producers=3, rate_bytes=RATE_BYTES, seed=7
        ) as load:
            load.goes_on(2_000)
            cluster.run("node", "add", "broker")
            cluster.run("node", "add", "broker")
            began = time.monotonic()
            while not _is_even(cluster):
                assert time.monotonic() < began + 4 * EVEN_S_MAX, cluster.run(
                    "cluster", "balance", "--explain"
                )
                time.sleep(0.5)
            even_s = time.monotonic() - began
            print(f"even {even_s:.1f} s after the third broker served: {_loads(cluster)}")
            print(cluster.run("cluster", "balance", "--explain"))
            load.goes_on(5_000)
            cluster.run("node", "remove", "broker", "2")
            cluster.run("node", "remove", "broker", "1")
            load.goes_on(5_000)
        led = Counter(place.leader_id for place in places(cluster.describe()["bootstrap"]))
        assert led == {cluster.process("broker", 0)["node_id"]: partitions}
        read_and_judge(cluster, TOPIC, partitions, load.acknowledged, CLIENT_FAMILIES[:1])
        assert even_s <= EVEN_S_MAX


def _watched(bootstrap: str, tmp_path: Path, partition: int) -> Any:
    return paced(
        "librdkafka",
        tmp_path / "loads",
        bootstrap=bootstrap,
        topic=TOPIC,
        partition=partition,
        record_bytes=1_000,
        rate_bytes=100e3,
    )


def _between(running: Paced, from_ns: int, until_ns: int) -> list[float]:
    return [
        (each.acknowledged_ns - each.sent_ns) / 1e9
        for each in running.acknowledgements
        if from_ns <= each.sent_ns < until_ns
    ]


def _loads(cluster: LocalCluster) -> list[int]:
    """Bytes per second that each live broker receives."""
    brokers = json.loads(cluster.run("cluster", "balance", "-o", "json"))["brokers"]
    return [row["in_bytes_per_s"] for row in brokers]


def _is_even(cluster: LocalCluster) -> bool:
    loads = _loads(cluster)
    mean = sum(loads) / len(loads)
    return len(loads) == 3 and mean > 0 and max(loads) - mean <= max(EVEN_SHARE * mean, EVEN_BYTES_PER_S)
