"""`ponor up` from an operator's view: start, stop, restart, refusals, crashes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.load.cluster import LocalCluster, ponor
from tests.e2e.load.producers import Assignment, produce
from tests.e2e.load.readers import read_all
from tests.e2e.scenarios import create_topic
from tests.ports import free_port

pytestmark = pytest.mark.e2e
STOP_S_MAX = 240.0
"""A process that does not exit is killed after a few seconds; the rest allows for a slow machine."""


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def test_stop_is_clean_and_the_next_up_has_all_data(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.start()
    create_topic(cluster, "t", 4)
    produce("librdkafka", Assignment(cluster.bootstrap, "t", "p", 0, 2000, 4))
    pids = [entry["pid"] for entry in cluster.describe()["processes"]]
    assert cluster.stop() < STOP_S_MAX
    assert not any(alive(pid) for pid in pids)
    assert not (tmp_path / "data" / "control.sock").exists()

    cluster.start()
    assert read_all("librdkafka", cluster.bootstrap, "t", 4).count == 2000
    cluster.stop()


@pytest.mark.parametrize(
    "arguments",
    [["--compactors", "1"], ["--controllers", "3", "--brokers", "3", "--wal", "object"]],
    ids=["one-broker", "three-brokers"],
)
def test_children_exit_when_up_is_killed_and_the_next_up_recovers(
    tmp_path: Path, arguments: list[str]
) -> None:
    cluster = LocalCluster(tmp_path, arguments=arguments)
    cluster.start()
    create_topic(cluster, "t", 4)
    produce("librdkafka", Assignment(cluster.bootstrap, "t", "p", 0, 2000, 4))
    pids = [entry["pid"] for entry in cluster.describe()["processes"]]
    cluster.kill_supervisor()
    deadline = time.monotonic() + STOP_S_MAX
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, (
            f"children outlive a killed `ponor up` by more than {STOP_S_MAX:.0f} s"
        )
        time.sleep(0.05)
    logs = "".join(path.read_text() for path in (tmp_path / "data" / "logs").glob("broker-*.log"))
    assert "draining: " not in logs, "brokers must not drain to brokers that also stop"
    with cluster:
        assert read_all("librdkafka", cluster.bootstrap, "t", 4).count == 2000


def test_second_up_on_one_directory_is_refused(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        command = [ponor(), "up", "--data", str(cluster.directory / "data"), "--kafka-port", str(free_port())]
        second = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert second.returncode == 1
        assert "in use by another `ponor up`" in second.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--controllers", "2"], "--controllers 2"),
        (["--brokers", "17"], "--brokers 17"),
        (["--compactors", "9"], "--compactors 9"),
        (["--wal", "tape"], "--wal tape"),
        (["--set", "log_cache_bytes_mex=1"], "did you mean log_cache_bytes_max"),
        (["--set", "upload_interval_ms=soon"], "upload_interval_ms"),
        (["--object-store", "ftp://x"], "ftp://x"),
    ],
)
def test_invalid_arguments_are_refused_by_name(tmp_path: Path, arguments: list[str], words: str) -> None:
    command = [ponor(), "up", "--data", str(tmp_path / "data"), "--kafka-port", str(free_port()), *arguments]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert refused.returncode != 0
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == [], "a refused start must leave no files behind"


def test_port_in_use_is_named_with_the_remedy(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [ponor(), "up", "--data", str(tmp_path / "data"), "--kafka-port", str(port)]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert refused.returncode == 1
    assert f"port {port}" in refused.stderr
    assert "--kafka-port" in refused.stderr
    assert list(tmp_path.iterdir()) == [], "a refused start must leave no files behind"


def test_ports_are_stable_and_a_cluster_is_reachable_over_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback address")
    cluster = LocalCluster(tmp_path, arguments=["--host", "::1"])
    seen = []
    for _ in range(2):
        with cluster:
            assert cluster.bootstrap == f"[::1]:{cluster.kafka_port}"
            words = ["topic", "list", "--bootstrap", cluster.bootstrap]
            done = subprocess.run([ponor(), *words], capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr
            description = cluster.describe()
            seen.append(
                (description["controllers"], [each["metrics_url"] for each in description["processes"]])
            )
    assert seen[0] == seen[1]
    assert seen[0][0] == [f"[::1]:{cluster.kafka_port + 20}"]


def test_stopped_node_stays_down_and_killed_node_restarts(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.run("node", "stop", "gc", "0")
        time.sleep(0.5)
        assert cluster.process("gc")["state"] == "stopped"
        cluster.run("node", "start", "gc", "0")
        assert cluster.process("gc")["state"] == "serving"
        cluster.run("node", "kill", "broker", "0")
        cluster.wait_serving("broker", after_restarts=1)
        create_topic(cluster, "after", 1)


def test_cluster_info_shows_live_and_dead_nodes(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, arguments=["--compactors", "1"]) as cluster:
        deadline = time.monotonic() + STOP_S_MAX
        while True:
            info = json.loads(cluster.run("cluster", "info", "-o", "json"))
            # `ponor up` is ready when brokers serve; the compactor and the collector may still be starting.
            if all(row["state"] == "serving" for row in info["processes"]):
                break
            assert time.monotonic() < deadline, info["processes"]
            time.sleep(0.1)
        assert [row["role"] for row in info["nodes"]] == ["controller", "broker", "compactor", "gc"]
        assert info["nodes"][0]["state"] == "live, leader"
        assert {row["state"] for row in info["nodes"][1:]} == {"live"}

        collector = cluster.process("gc")
        os.kill(collector["pid"], signal.SIGSTOP)
        rows = json.loads(cluster.run("node", "list", "-o", "json"))
        assert {row["role"]: row["state"] for row in rows} == {
            "controller": "serving",
            "broker": "serving",
            "compactor": "serving",
            "gc": "not answering",
        }
        os.kill(collector["pid"], signal.SIGCONT)

        cluster.run("node", "stop", "broker", "0")
        controllers = ",".join(info["controllers"])
        command = [ponor(), "cluster", "info", "--controllers", controllers, "-o", "json"]
        deadline = time.monotonic() + STOP_S_MAX
        while True:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            (broker,) = json.loads(done.stdout)["brokers"]
            if broker["state"].startswith("away"):
                break
            assert time.monotonic() < deadline, broker
            time.sleep(1)
        assert (done.returncode, done.stderr) == (
            1,
            "ponor: no broker is live: clients cannot connect; `ponor node list` shows the processes\n",
        )

        # The leader waits for a session timeout before it considers the broker gone.
        node_id = str(broker["broker"])
        forget = [ponor(), "cluster", "unregister", node_id, "--controllers", controllers]
        while (refused := subprocess.run(forget, capture_output=True, text=True, timeout=600)).returncode:
            assert "is alive, or stopped a moment ago" in refused.stderr
            assert time.monotonic() < deadline
            time.sleep(1)
        cluster.run("node", "start", "broker", "0")
        assert json.loads(cluster.run("cluster", "info", "-o", "json"))["brokers"][0]["state"] == "live"
