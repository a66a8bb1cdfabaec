"""Three broker processes under load: partitions are spread and moved.

A broker is removed, one dies, one joins.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import PartitionPlace, places_of
from ponor_cli.errors import CommandError
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

from tests.e2e.load.cluster import LocalCluster, ponor
from tests.e2e.load.producers import CLIENT_FAMILIES
from tests.e2e.load.steady import SteadyLoad, steady_load, wait_for
from tests.e2e.scenarios import create_topic, read_and_judge

PARTITIONS = 9
BROKERS = 3
RATE_BYTES = 100e3
RECORDS = 80
"""Records stored between two events, which shows that everything works again."""


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("wal", ["file", "object"])
def test_brokers_come_and_go_and_nothing_is_lost(tmp_path: Path, wal: str) -> None:
    with LocalCluster(tmp_path, arguments=["--brokers", str(BROKERS), "--wal", wal]) as cluster:
        create_topic(cluster, "load", PARTITIONS)
        _partitions_are_spread(cluster)
        _every_broker_answers_for_all(cluster)
        with steady_load(
            cluster, "load", partitions=PARTITIONS, producers=2, rate_bytes=RATE_BYTES, seed=5
        ) as load:
            load.goes_on(RECORDS)
            _a_partition_is_moved_there_and_back(cluster, load)
            _a_broker_is_removed(cluster, load)
            _a_broker_is_added_and_gets_a_partition(cluster, load)
            _a_broker_is_killed_and_comes_back(cluster, load)
            _a_broker_that_is_told_to_stop_leaves_and_is_not_restarted(cluster, load)
        read_and_judge(cluster, "load", PARTITIONS, load.acknowledged, CLIENT_FAMILIES[:1])
        before = cluster.bootstrap
        cluster.stop()
        _fewer_brokers_than_hold_partitions_are_refused(cluster)
        cluster.start()
        assert cluster.bootstrap == before
        read_and_judge(cluster, "load", PARTITIONS, load.acknowledged, CLIENT_FAMILIES[1:2])


def _partitions_are_spread(cluster: LocalCluster) -> None:
    _know_the_same_leaders(cluster)
    led = Counter(place.leader_id for place in _places(cluster))
    assert sorted(led.values()) == [PARTITIONS // BROKERS] * BROKERS
    assert set(led) == {cluster.process("broker", number)["node_id"] for number in range(BROKERS)}


def _every_broker_answers_for_all(cluster: LocalCluster) -> None:
    """Check that all brokers report the same leaders and coordinators, and that these are spread over
    brokers."""
    groups = [f"group-{number}" for number in range(12)]
    asked = cluster.bootstrap.split(",")
    assert len(asked) == BROKERS
    _know_the_same_leaders(cluster)
    for address in asked:
        _await_coordinators(address, groups)
    leaders, coordinators = [], []
    for address in asked:
        with KafkaClient(address) as client:
            assert len(client.metadata([]).brokers) == BROKERS
            leaders.append([(place.partition, place.leader_id) for place in places_of(client, ["load"])])
            coordinators.append([_coordinator(client, group) for group in groups])
    assert leaders[0] == leaders[1] == leaders[2]
    assert coordinators[0] == coordinators[1] == coordinators[2]
    assert len(set(coordinators[0])) > 1


def _a_partition_is_moved_there_and_back(cluster: LocalCluster, load: SteadyLoad) -> None:
    home = _leader(cluster, 0)
    away = next(
        row["node_id"]
        for row in cluster.describe()["processes"]
        if row["role"] == "broker" and row["node_id"] != home
    )
    for target in (away, home):
        words = ["partition", "move", "load", "0", "--to", str(target), "--wait", "-o", "json"]
        moved = json.loads(cluster.run(*words))
        print(f"moved to {target} in {moved['took_ms']} ms")
        _know_the_same_leaders(cluster)
        assert _leader(cluster, 0) == target
        again = json.loads(cluster.run(*words))
        assert (again["partitions"], again["already_there"], again["leader"]) == ([], [0], target)
        assert f"already led by {target}: nothing to move" in again["message"]
        load.goes_on(RECORDS)


def _a_broker_is_removed(cluster: LocalCluster, load: SteadyLoad) -> None:
    gone = cluster.process("broker", 1)["node_id"]
    _remove(cluster, 1)
    assert [row["id"] for row in cluster.describe()["processes"] if row["role"] == "broker"] == [0, 2]
    _know_the_same_leaders(cluster)
    assert gone not in {place.leader_id for place in _places(cluster)}
    wait_for(lambda: _broker(cluster, gone)["state"] == "left or fenced", "the broker has left")
    load.goes_on(RECORDS)


def _remove(cluster: LocalCluster, number: int) -> None:
    """Remove a broker, following the remedy of a refusal.

    A broker without contact to the controllers for 1.5 s stops as if it were alone and keeps its partitions.
    """

    def is_removed() -> bool:
        try:
            cluster.run("node", "remove", "broker", str(number))
        except AssertionError as error:
            if "has ended but still leads" not in str(error):
                raise
            cluster.run("node", "start", "broker", str(number))
            return False
        return True

    wait_for(is_removed, f"broker {number} is removed")


def _a_broker_is_added_and_gets_a_partition(cluster: LocalCluster, load: SteadyLoad) -> None:
    cluster.run("node", "add", "broker")
    back = cluster.process("broker", 1)
    assert back["addresses"]["kafka"] in cluster.bootstrap.split(",")
    cluster.run("partition", "move", "load", "0", "1", "--to", "1", "--wait")
    _know_the_same_leaders(cluster)
    assert {_leader(cluster, 0), _leader(cluster, 1)} == {back["node_id"]}
    load.goes_on(RECORDS)


def _a_broker_is_killed_and_comes_back(cluster: LocalCluster, load: SteadyLoad) -> None:
    before = cluster.process("broker", 2)["restarts"]
    cluster.kill("broker", 2)
    cluster.wait_serving("broker", 2, after_restarts=before + 1)
    wait_for(lambda: all(place.leader_id >= 0 for place in _places(cluster)), "every partition is led")
    load.goes_on(RECORDS)


def _a_broker_that_is_told_to_stop_leaves_and_is_not_restarted(
    cluster: LocalCluster, load: SteadyLoad
) -> None:
    """Stop a broker by SIGTERM from outside `ponor up`: it drains, exits, and stays down until it is started.

    A broker that lost contact to the controllers meanwhile did not drain: it is restarted, and stopped again.
    """
    told: set[int] = set()

    def has_left() -> bool:
        broker = cluster.process("broker", 0)
        if broker["state"] == "serving" and broker["pid"] not in told:
            told.add(broker["pid"])
            os.kill(broker["pid"], signal.SIGTERM)
        return bool(broker["state"] == "stopped")

    wait_for(has_left, "broker 0 has left")
    assert _broker(cluster, cluster.process("broker", 0)["node_id"])["partitions"] == 0
    load.goes_on(RECORDS)
    cluster.run("node", "start", "broker", "0")


def _fewer_brokers_than_hold_partitions_are_refused(cluster: LocalCluster) -> None:
    command = [ponor(), "up", "--data", str(cluster.directory / "data"), "--brokers", "1"]
    command += ["--wal", cluster.describe()["wal"], "--kafka-port", str(cluster.kafka_port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "ponor node remove broker N" in done.stderr


def _places(cluster: LocalCluster) -> list[PartitionPlace]:
    with KafkaClient(cluster.bootstrap) as client:
        return places_of(client, ["load"])


def _leader(cluster: LocalCluster, partition: int) -> int:
    return _places(cluster)[partition].leader_id


def _broker(cluster: LocalCluster, node_id: int) -> dict[str, Any]:
    brokers = json.loads(cluster.run("cluster", "info", "-o", "json"))["brokers"]
    row: dict[str, Any] = next(row for row in brokers if row["broker"] == node_id)
    return row


def _know_the_same_leaders(cluster: LocalCluster) -> None:
    """Wait until all brokers agree; each follows the metadata by itself, so one may be behind."""

    def agree() -> bool:
        said = []
        try:
            for address in cluster.bootstrap.split(","):
                with KafkaClient(address) as client:
                    said.append([place.leader_id for place in places_of(client, ["load"])])
        except CommandError:  # the broker does not know the topic yet
            return False
        return all(leaders == said[0] and min(leaders) >= 0 for leaders in said)

    wait_for(agree, "all brokers know the same leaders")


def _await_coordinators(address: str, groups: list[str]) -> None:
    """Wait for the groups' coordinators; the first request creates their topic."""
    with KafkaClient(address) as client:
        wait_for(
            lambda: all(_coordinator(client, group) >= 0 for group in groups), "groups have coordinators"
        )


def _coordinator(client: KafkaClient, group: str) -> int:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    coordinator = client.call(request, FindCoordinatorResponse).coordinators[0]
    return coordinator.node_id if coordinator.error_code == 0 else -1
