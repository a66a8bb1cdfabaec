"""Failures of brokers without disks: one of three, two of three, and one that was only paused.
PONOR_KILLS sets the number of kills (default 30).
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import PartitionPlace, places_of

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.numbered import judge_numbered
from tests.e2e.load.paced import Paced, paced
from tests.e2e.load.quorum import percentile
from tests.e2e.load.steady import wait_for
from tests.integration.seaweed_server import SeaweedServer

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("PONOR_KILLS", "30"))
BROKERS = 3
PARTITIONS = 6
FAMILIES = ("librdkafka", "aiokafka")
RATE_BYTES = 5e6
TOPIC = "load"
CALM_S = 3.0


@contextmanager
def three_brokers(tmp_path: Path) -> Iterator[LocalCluster]:
    with SeaweedServer(tmp_path / "s3") as store:
        arguments = ["--brokers", str(BROKERS), "--wal", "object", "--object-store", store.url("ponor")]
        with LocalCluster(tmp_path / "ponor", arguments=arguments, environment=store.environment) as cluster:
            cluster.run("topic", "create", TOPIC, "--partitions", str(PARTITIONS))
            yield cluster


@contextmanager
def producers(cluster: LocalCluster, directory: Path) -> Iterator[list[Paced]]:
    """One producer per partition, two client families in turn, together at the given rate."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                paced(
                    FAMILIES[partition % len(FAMILIES)],
                    directory,
                    bootstrap=cluster.describe()["bootstrap"],
                    topic=TOPIC,
                    partition=partition,
                    rate_bytes=RATE_BYTES / PARTITIONS,
                )
            )
            for partition in range(PARTITIONS)
        ]
        yield running


def places(cluster: LocalCluster, *, asked: int = 0) -> list[PartitionPlace]:
    """Locations of the topic's partitions according to the broker with this number."""
    addresses = cluster.describe()["bootstrap"].split(",")
    with KafkaClient(",".join((*addresses[asked:], *addresses[:asked]))) as client:
        return places_of(client, [TOPIC])


def led_by(cluster: LocalCluster, number: int, *, asked: int = 0) -> list[int]:
    """Partitions of the topic that the broker with this number leads."""
    node_id = cluster.process("broker", number)["node_id"]
    return [place.partition for place in places(cluster, asked=asked) if place.leader_id == node_id]


def kill(cluster: LocalCluster, numbers: Sequence[int]) -> int:
    """SIGKILL brokers and delete their directories; return the time (CLOCK_MONOTONIC, ns)."""
    at_ns = time.monotonic_ns()
    for number in numbers:
        cluster.kill("broker", number)
    for number in numbers:
        shutil.rmtree(cluster.directory / "data" / f"broker-{number}", ignore_errors=True)
    return at_ns


def back_s(running: Paced, at_ns: int) -> float:
    """Time from the kill to the end of the producer's longest pause."""
    times = sorted(each.acknowledged_ns for each in running.acknowledgements)
    gaps = [
        (after - before, after)
        for before, after in itertools.pairwise(times)
        if after > at_ns and before < at_ns + int(CALM_S * 1e9)
    ]
    return (max(gaps)[1] - at_ns) / 1e9


def judge_all(cluster: LocalCluster, running: Sequence[Paced]) -> None:
    for each in running:
        judge_numbered(cluster.describe()["bootstrap"], TOPIC, each)


def shown(times_s: Sequence[float]) -> str:
    figures = (percentile(times_s, 0.5), percentile(times_s, 0.99), max(times_s))
    return "p50 {:.2f} s, p99 {:.2f} s, worst {:.2f} s".format(*figures)


def each_leads_something(cluster: LocalCluster) -> None:
    """Move partitions to a broker that returned, as the balancer or an operator does."""
    for number in range(BROKERS):
        if not led_by(cluster, number):
            most = max(range(BROKERS), key=lambda other: len(led_by(cluster, other)))
            partition = str(led_by(cluster, most)[0])
            cluster.run("partition", "move", TOPIC, partition, "--to", str(number), "--wait")


def wait_back(cluster: LocalCluster, numbers: Sequence[int], restarts: dict[int, int]) -> None:
    for number in numbers:
        cluster.wait_serving("broker", number, after_restarts=restarts[number] + 1)
    wait_for(lambda: all(place.leader_id >= 0 for place in places(cluster)), "every partition is led")
    time.sleep(CALM_S)


def restarts_of(cluster: LocalCluster) -> dict[int, int]:
    return {number: cluster.process("broker", number)["restarts"] for number in range(BROKERS)}


def test_a_broker_is_killed_thirty_times(tmp_path: Path) -> None:
    kills: list[tuple[int, list[int]]] = []
    with three_brokers(tmp_path) as cluster:
        with producers(cluster, tmp_path / "loads") as running:
            for turn in range(KILLS):
                each_leads_something(cluster)
                number = turn % BROKERS
                partitions, restarts = led_by(cluster, number), restarts_of(cluster)
                kills.append((kill(cluster, [number]), partitions))
                wait_back(cluster, [number], restarts)
        times_s = [
            back_s(running[partition], at_ns) for at_ns, partitions in kills for partition in partitions
        ]
        print(f"{KILLS} brokers killed: first acknowledged produce after {shown(times_s)}")
        judge_all(cluster, running)


def test_two_of_three_brokers_are_killed_together(tmp_path: Path) -> None:
    with three_brokers(tmp_path) as cluster:
        with producers(cluster, tmp_path / "loads") as running:
            restarts = restarts_of(cluster)
            partitions = led_by(cluster, 0) + led_by(cluster, 1)
            at_ns = kill(cluster, [0, 1])
            wait_back(cluster, [0, 1], restarts)
        times_s = [back_s(running[partition], at_ns) for partition in partitions]
        print(f"two of three killed: first acknowledged produce after {shown(times_s)}")
        judge_all(cluster, running)


def test_a_paused_broker_that_was_replaced_exits(tmp_path: Path) -> None:
    """Paused with puts in flight, replaced, recovered, trimmed and collected, then resumed: it
    exits, and none of its puts counts.
    """
    with three_brokers(tmp_path) as cluster:
        with producers(cluster, tmp_path / "loads") as running:
            pid = cluster.process("broker", 0)["pid"]
            restarts = restarts_of(cluster)
            zombies = led_by(cluster, 0)
            at_ns = time.monotonic_ns()
            os.kill(pid, signal.SIGSTOP)
            try:
                wait_for(
                    lambda: not led_by(cluster, 0, asked=1), "the sleeper's partitions are led by others"
                )
                time.sleep(2 * CALM_S)
            finally:
                os.kill(pid, signal.SIGCONT)
            wait_for(_is_unloaded(pid), "the sleeper has ended")
            cluster.wait_serving("broker", 0, after_restarts=restarts[0] + 1)
            time.sleep(CALM_S)
        times_s = [back_s_of_sleep(running[partition], at_ns) for partition in zombies]
        print(f"a broker was paused: first acknowledged produce after {shown(times_s)}")
        judge_all(cluster, running)


def back_s_of_sleep(running: Paced, at_ns: int) -> float:
    """The same where suspicion takes the whole session timeout."""
    later = [
        each.acknowledged_ns for each in running.acknowledgements if each.acknowledged_ns > at_ns + 10**9
    ]
    return (min(later) - at_ns) / 1e9


def _is_unloaded(pid: int) -> Callable[[], bool]:
    def gone() -> bool:
        try:
            return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
        except FileNotFoundError:
            return True

    return gone
