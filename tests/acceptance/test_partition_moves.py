"""Moves of a partition between brokers, for several sizes, while clients produce and consume.

Sizes, clients and the number of moves: PONOR_MOVE_GB ("0.1,1,5"), PONOR_MOVE_CLIENTS
("librdkafka,java,aiokafka"), PONOR_MOVES (100), PONOR_MOVE_WAL ("object"). For comparison, Apache
Kafka moves the same partition once per size between two brokers (if its jars are present: `make
peers`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import follow, places_of, request_moves

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.group_watch import GroupWatch, group_watch
from tests.e2e.load.numbered import fill, judge_numbered
from tests.e2e.load.paced import Paced, paced
from tests.e2e.load.quorum import percentile
from tests.integration.seaweed_server import SeaweedServer
from tests.peers.artifacts import PeerMissingError
from tests.peers.kafka_pair import kafka_pair

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(7200)]

SIZES_GB = [float(size) for size in os.environ.get("PONOR_MOVE_GB", "0.1,1,5").split(",")]
CLIENTS = os.environ.get("PONOR_MOVE_CLIENTS", "librdkafka,java,aiokafka").split(",")
MOVES = int(os.environ.get("PONOR_MOVES", "100"))
WAL = os.environ.get("PONOR_MOVE_WAL", "object")
SETTLE_S = 0.5
TOPIC = "moving"
WIDE_WINDOW = {
    "java": {"batch.size": "1000000", "linger.ms": "5"},
    "aiokafka": {"max_batch_size": "1000000", "linger_ms": "5"},
}
"""The default batches of 16 KiB, five in flight, cannot carry 5 MB/s with the latency of an object store."""


def move(client: KafkaClient, partition: int, target_id: int) -> tuple[int, int]:
    """Move and wait; return the times of the request and of the end (CLOCK_MONOTONIC, ns)."""
    began_ns = time.monotonic_ns()
    request_moves(client, TOPIC, [partition], target_id)
    for _ in follow(client, TOPIC, [partition]):
        pass
    (place,) = [row for row in places_of(client, [TOPIC]) if row.partition == partition]
    assert place.leader_id == target_id
    return began_ns, time.monotonic_ns()


def move_to_and_fro(client: KafkaClient, running: Paced, moves: int) -> list[float]:
    """The pauses of the producer."""
    brokers = sorted(row.node_id for row in client.metadata([]).brokers)
    (place,) = places_of(client, [TOPIC])
    at = brokers.index(place.leader_id)
    moments: list[tuple[int, int]] = []
    for _ in range(moves):
        at = (at + 1) % len(brokers)
        moments.append(move(client, 0, brokers[at]))
        time.sleep(SETTLE_S)
    running.stop()
    return [running.pause_s(began_ns, ended_ns) for began_ns, ended_ns in moments]


def shown(pauses: list[float]) -> str:
    """In milliseconds."""
    figures = (percentile(pauses, 0.5), percentile(pauses, 0.99), max(pauses))
    return "p50 {:.0f} ms, p99 {:.0f} ms, worst {:.0f} ms".format(*(1000 * figure for figure in figures))


@contextmanager
def two_brokers(tmp_path: Path) -> Iterator[LocalCluster]:
    with SeaweedServer(tmp_path / "s3") as store:
        arguments = ["--brokers", "2", "--wal", WAL, "--object-store", store.url("ponor")]
        with LocalCluster(tmp_path / "ponor", arguments=arguments, environment=store.environment) as cluster:
            yield cluster


@pytest.mark.parametrize("size_gb", SIZES_GB)
def test_a_partition_moves_back_and_forth_under_load(tmp_path: Path, size_gb: float) -> None:
    with two_brokers(tmp_path) as cluster:
        bootstrap = cluster.describe()["bootstrap"]
        cluster.run("topic", "create", TOPIC, "--partitions", "1")
        fill(bootstrap, TOPIC, int(size_gb * 1e9))
        for family in CLIENTS:
            _one_client(cluster, bootstrap, tmp_path, family, size_gb)


def _one_client(cluster: LocalCluster, bootstrap: str, tmp_path: Path, family: str, size_gb: float) -> None:
    watching: GroupWatch
    with (
        group_watch(bootstrap, TOPIC, group=f"watch-{family}") as watching,
        paced(
            family, tmp_path / "loads", bootstrap=bootstrap, topic=TOPIC, properties=WIDE_WINDOW.get(family)
        ) as running,
        KafkaClient(bootstrap) as client,
    ):
        watching.wait_assigned()
        pauses = move_to_and_fro(client, running, MOVES)
    assert watching.assignments == 1, "the group rebalanced"
    assert not watching.errors, watching.errors[0]
    print(f"{size_gb:g} GB, {family}, {MOVES} moves: pause of the producer {shown(pauses)}")
    judge_numbered(bootstrap, TOPIC, running)


@pytest.mark.parametrize("size_gb", SIZES_GB)
def test_kafka_moves_the_same_partition(tmp_path: Path, size_gb: float) -> None:
    try:
        with kafka_pair(tmp_path / "kafka") as pair:
            pair.create_topic(TOPIC, at=1)
            fill(pair.bootstrap, TOPIC, int(size_gb * 1e9))
            with paced("librdkafka", tmp_path / "loads", bootstrap=pair.bootstrap, topic=TOPIC) as running:
                began_ns, ended_ns = pair.move(TOPIC, 0, to=2)
            pause_s = running.pause_s(began_ns, ended_ns)
        took_s = (ended_ns - began_ns) / 1e9
        print(
            f"{size_gb:g} GB: Kafka's move took {took_s:.1f} s; pause of the producer {1000 * pause_s:.0f} ms"
        )
    except PeerMissingError as missing:
        pytest.skip(str(missing))
