"""`ponor group` against a running cluster: groups of every type are shown, reset and deleted."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from ponor_cli.clients.broker_connections import BrokerConnections
from ponor_cli.clients.coordinators import GROUP_KEY, coordinator_of
from ponor_kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ponor_kafka.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)

from tests.e2e.load.cluster import LocalCluster, ponor
from tests.e2e.scenarios import create_topic

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
WAIT_S_MAX = 240.0
RECORDS = 10
"""Records in each of the two partitions of `orders`."""
BEGUN_MS = (int(time.time()) - 3_600) * 1_000
"""Time of the first record."""
SETTINGS = {
    "offsets_topic_partitions": 4,
    "share_state_topic_partitions": 4,
    "group_initial_rebalance_delay_ms": 0,
    "group_share_assignment_interval_ms": 0,
    "group_streams_initial_rebalance_delay_ms": 0,
    "group_streams_assignment_interval_ms": 0,
}


def test_groups_of_every_type_are_shown_reset_and_deleted(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, settings=SETTINGS, arguments=["--brokers", "2"]) as cluster:
        assert _rows(cluster, "list") == []
        assert "there is no group g" in _refusal(cluster, "describe", "g")
        create_topic(cluster, "orders", 2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(2 * RECORDS):
            producer.produce(
                "orders", str(number).encode(), partition=number % 2, timestamp=BEGUN_MS + number
            )
        assert producer.flush(WAIT_S_MAX) == 0
        for protocol in ("classic", "consumer"):
            _check_consumers(cluster, protocol)
        _check_share(cluster)
        _check_streams(cluster)
        assert _rows(cluster, "list") == []


def _check_consumers(cluster: LocalCluster, protocol: str) -> None:
    group, kind = f"{protocol}-group", protocol.capitalize()
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    _until(lambda: consumer.poll(0.2) is None and len(consumer.assignment()) == 2)
    consumer.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
    (listed,) = _rows(cluster, "list", "--type", protocol, "--state", "Stable")
    assert (listed["group"], listed["type"]) == (group, kind)
    described = _rows(cluster, "describe", group)
    assert (described["type"], described["state"], described["total_lag"]) == (kind, "Stable", 6)
    (member,) = described["members"]
    assert member["partitions"] == ["orders-0", "orders-1"]
    assert [(row["offset"], row["end_offset"], row["lag"]) for row in described["offsets"]] == [
        (4, RECORDS, 6),
        (None, RECORDS, None),
    ]
    assert all(row["members"] == [member["member_id"]] for row in described["offsets"])
    reset = ("reset-offsets", group, "--topic", "orders", "--to-earliest")
    assert f"group {group} has members" in _refusal(cluster, *reset)
    assert f"group {group} has members" in _refusal(cluster, "delete", group)
    consumer.close()
    _until(lambda: _rows(cluster, "describe", group)["state"] == "Empty")
    _check_resets(cluster, group)


def _check_resets(cluster: LocalCluster, group: str) -> None:
    def reset(*words: str) -> list[tuple[int | None, int]]:
        return [
            (row["offset"], row["new_offset"])
            for row in _rows(cluster, "reset-offsets", group, "--topic", "orders", *words)
        ]

    def offsets() -> list[int | None]:
        return [row["offset"] for row in _rows(cluster, "describe", group)["offsets"]]

    before = offsets()
    reset("--to-latest")
    reset("--to-latest", "--dry-run")
    assert offsets() == before, "nothing changes without --execute"
    assert [after for _, after in reset("--to-latest", "--execute")] == [RECORDS] * 2
    assert offsets() == [RECORDS] * 2
    assert reset("--shift-by=-3", "--execute") == [(RECORDS, 7)] * 2
    assert reset("--shift-by", "100", "--execute") == [(7, RECORDS)] * 2
    assert reset("--to-datetime", _time(BEGUN_MS + 10), "--execute") == [(RECORDS, 5)] * 2
    assert _rows(cluster, "reset-offsets", group, "--topic", "orders:1", "--to-offset", "2", "--execute")
    assert offsets() == [5, 2]
    words = ("--all-topics", "--to-earliest", "--execute")
    assert len(_rows(cluster, "reset-offsets", group, *words)) == 2
    assert offsets() == [0, 0]
    refused = _refusal(cluster, "reset-offsets", group, "--topic", "orders:7", "--to-latest")
    assert "topic orders has no partition 7; it has 2" in refused
    assert "choose one new offset" in _refusal(cluster, "reset-offsets", group, "--topic", "orders")
    assert "there is no group other" in _refusal(
        cluster, "reset-offsets", "other", "--topic", "orders", "--to-latest"
    )
    assert _rows(cluster, "delete", group)["done"] is True
    assert f"there is no group {group}" in _refusal(cluster, "delete", group)


def _check_share(cluster: LocalCluster) -> None:
    group, member_id = "share-group", str(uuid.uuid4())
    with BrokerConnections(cluster.bootstrap) as brokers:

        def beat(epoch: int) -> ShareGroupHeartbeatResponse:
            request = ShareGroupHeartbeatRequest(group, member_id, epoch, None, ["orders"])
            coordinator = brokers.of(coordinator_of(brokers, GROUP_KEY, group))
            return coordinator.call(request, ShareGroupHeartbeatResponse)

        def has_partitions() -> bool:
            assert beat(0).error_code == 0
            return len(_rows(cluster, "describe", group)["members"][0]["partitions"]) == 2

        # Partitions are assigned once they have a delivery state.
        _until(has_partitions)
        described = _rows(cluster, "describe", group)
        assert (described["type"], described["state"], described["assignor"]) == ("Share", "Stable", "simple")
        assert [row["members"] for row in described["offsets"]] == [[member_id]] * 2
        reset = ("reset-offsets", group, "--topic", "orders", "--to-earliest")
        assert f"group {group} has members" in _refusal(cluster, *reset)
        assert beat(-1).error_code == 0
    _check_resets(cluster, group)


def _check_streams(cluster: LocalCluster) -> None:
    group = "streams-group"
    with BrokerConnections(cluster.bootstrap) as brokers:

        def beat(epoch: int) -> StreamsGroupHeartbeatResponse:
            request = StreamsGroupHeartbeatRequest(group, "m", epoch)
            if epoch >= 0:
                request.topology = Topology(1, [Subtopology("0", ["orders"])])
                request.rebalance_timeout_ms, request.process_id = 60_000, "p"
                request.active_tasks = request.standby_tasks = request.warmup_tasks = []
                request.client_tags = []
            coordinator = brokers.of(coordinator_of(brokers, GROUP_KEY, group))
            return coordinator.call(request, StreamsGroupHeartbeatResponse, version_max=0)

        _until(lambda: beat(0).error_code == 0)
        described = _rows(cluster, "describe", group)
        assert (described["type"], described["members"][0]["tasks"]) == ("Streams", ["0_0", "0_1"])
        assert [row["members"] for row in described["offsets"]] == [["m"]] * 2
        assert beat(-1).error_code == 0
    _check_resets(cluster, group)


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1_000, UTC).isoformat(timespec="milliseconds")


def _until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _rows(cluster: LocalCluster, *words: str) -> Any:
    return json.loads(cluster.run("group", *words, "-o", "json"))


def _refusal(cluster: LocalCluster, *words: str) -> str:
    """Return the error of a command that must fail."""
    command = [ponor(), "group", *words, "--bootstrap", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    return line
