"""Controller and collector as real processes: ready file, metrics, signals, restart after SIGKILL,
and one-line refusals.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

ORDINAL = ClusterOrdinal(1)


def _start(module: str, root: Path, **config: Any) -> subprocess.Popen[str]:
    path = root / f"{module}.json"
    path.write_text(json.dumps({"ready_file": str(root / f"{module}.ready"), **config}))
    return subprocess.Popen(
        [sys.executable, "-m", module, "--config", str(path)], stderr=subprocess.PIPE, text=True
    )


def _addresses(process: subprocess.Popen[str], root: Path, module: str) -> dict[str, str]:
    ready = root / f"{module}.ready"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if ready.exists() and (content := json.loads(ready.read_text()))["pid"] == process.pid:
            return dict(content["addresses"])
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    raise AssertionError(f"{module} did not get ready")


@contextmanager
def _running(
    module: str, root: Path, **config: Any
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    process = _start(module, root, **config)
    try:
        yield process, _addresses(process, root, module)
    finally:
        process.kill()
        process.communicate()


def _controller(root: Path, **config: Any) -> Any:
    defaults = {
        "data": str(root / "controller"),
        "listen": "127.0.0.1:0",
        "cluster_ordinal": ORDINAL,
        "format": True,
    }
    return _running("ponor_controller", root, **{**defaults, **config})


async def _put(address: str, key: str) -> wire.KeyHeld:
    network = GrpcNetwork()
    identity = NodeIdentity(
        compose_node_id(ORDINAL, 0),
        NodeRole.BROKER,
        SystemRandomness().token(16),
        kafka_host="b",
        kafka_port=1,
    )
    session = SessionClient(
        network=network,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        telemetry=Telemetry(),
        identity=identity,
        addresses=[address],
    )
    running = asyncio.create_task(session.run())
    result = await session.submit(
        wire.Operation(put_key=wire.PutKey(key=key, value=b"v")), deadline_ms=240_000
    )
    await session.close()
    await running
    await network.close()
    return result.key_held


def _scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics") as response:
        text: str = response.read().decode()
    return text


def _sample(text: str, name: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.rpartition(" ")[2])


async def test_answered_operations_survive_sigkill_and_the_metrics_show_them(tmp_path: Path) -> None:
    with _controller(tmp_path, metrics="127.0.0.1:0") as (process, addresses):
        assert (await _put(addresses["session"], "key")).created
        text = await asyncio.get_running_loop().run_in_executor(None, _scrape, addresses["metrics"])
        assert _sample(text, 'ponor_controller_operations_total{operation="put_key",result="ok"}') >= 1
        # The formatted cluster, the term, the node, the key, and the records about the missing node.
        assert _sample(text, "ponor_controller_committed_index") >= 4
        process.send_signal(signal.SIGKILL)
        process.wait()
    with _controller(tmp_path) as (process, addresses):
        assert not (await _put(addresses["session"], "key")).created
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=240) == 0


def test_a_collector_starts_and_stops_normally(tmp_path: Path) -> None:
    with _controller(tmp_path) as (_, addresses):
        config = {
            "node_id": compose_node_id(ORDINAL, 1_000),
            "controllers": [addresses["session"]],
            "object_store": f"file://{tmp_path}/objects",
            "metrics": "127.0.0.1:0",
        }
        with _running("ponor_gc", tmp_path, **config) as (collector, own):
            assert "ponor_gc_deleted_total 0.0" in _scrape(own["metrics"])
            collector.send_signal(signal.SIGTERM)
            assert collector.wait(timeout=240) == 0


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"cluster_ordinal": 0}, "cluster_ordinal"),
        ({"settings": {"destroy_delay": 1}}, "destroy_delay_ms"),
        ({"settings": {"session_timeout_ms": 1}}, "session_timeout_ms"),
        ({"metrics": "nowhere"}, "HOST:PORT"),
    ],
)
def test_an_invalid_configuration_gives_one_line_and_exit_code_1(
    tmp_path: Path, config: Any, named: str
) -> None:
    process = _start(
        "ponor_controller", tmp_path, **{"data": str(tmp_path), "listen": "127.0.0.1:0", **config}
    )
    _, line = process.communicate(timeout=240)
    assert process.returncode == 1
    assert named in line
    assert len(line.strip().splitlines()) == 1


def test_a_port_in_use_and_a_directory_in_use_are_refused_by_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        process = _start("ponor_controller", tmp_path, data=str(tmp_path / "a"), listen=listen, format=True)
        _, line = process.communicate(timeout=240)
        assert process.returncode == 1
        assert listen in line
    with _controller(tmp_path):
        second = _start("ponor_controller", tmp_path, data=str(tmp_path / "controller"), listen="127.0.0.1:0")
        _, line = second.communicate(timeout=240)
        assert second.returncode == 1
        assert "another controller" in line
