"""Readiness conditions, the age of the last evaluation, probes and ready file."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest
from ponor_runtime.command import announce, start_metrics
from ponor_runtime.health import LIVE_SILENCE_NS, READY_SILENCE_NS, Health, Unmet
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry

from libs.runtime.tests.service_program import NoNetwork


def runtime() -> Runtime:
    return Runtime(SystemClock(), SystemRandomness(), SystemDisk(), NoNetwork(), Telemetry())


def test_process_is_ready_between_announce_and_stop() -> None:
    health = Health()
    assert [each.condition for each in health.unmet()] == ["start"]
    health.announce()
    assert health.unmet() == ()
    health.stop()
    health.announce()
    assert [each.condition for each in health.unmet()] == ["stop"]


def test_verdict_lists_every_unmet_condition_with_its_reason() -> None:
    health, reason = Health(), {"session": "", "fence": ""}
    health.require("session", lambda: reason["session"])
    health.require("fence", lambda: reason["fence"])
    health.announce()
    health.look(0)
    assert health.ready(0).is_good
    reason["fence"] = "cut off"
    health.look(1)
    assert health.ready(1) == (False, ("fence: cut off",))
    assert health.unmet() == (Unmet("fence", "cut off"),)
    assert health.live(1).is_good


def test_stalled_loop_is_first_not_ready_and_then_not_live() -> None:
    health = Health()
    health.announce()
    health.look(1_000)
    assert health.ready(1_000 + READY_SILENCE_NS).is_good
    assert not health.ready(1_001 + READY_SILENCE_NS).is_good
    assert health.live(1_000 + LIVE_SILENCE_NS).is_good
    verdict = health.live(1_001 + LIVE_SILENCE_NS)
    assert verdict == (False, ("loop: the event loop has not run for 15.0 s",))


def test_grpc_service_with_its_own_check_ignores_the_process_conditions() -> None:
    health = Health()
    health.require_for("ponor.Peer", lambda: "")
    assert health.serves("ponor.Peer")
    assert not health.serves("ponor.Session")
    assert not health.serves("")
    health.announce()
    assert health.serves("")


def test_ready_file_follows_the_conditions(tmp_path: Path) -> None:
    world, path, reason = runtime(), tmp_path / "ready.json", [""]
    world.health.require("session", lambda: reason[0])
    announce(world, path, {"kafka": "127.0.0.1:9092"})
    world.health.look(1)
    content = json.loads(path.read_text())
    assert (content["addresses"], content["unmet"]) == ({"kafka": "127.0.0.1:9092"}, {})
    assert content["ready"]
    reason[0] = "silent"
    world.health.look(2)
    content = json.loads(path.read_text())
    assert (content["ready"], content["unmet"]) == (False, {"session": "silent"})


def ask(address: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=90)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_endpoint_serves_only_metrics_and_probes(host: str) -> None:
    world = runtime()
    try:
        address = start_metrics(world, f"{host}:0")["metrics"]
    except OSError:
        pytest.skip(f"{host} cannot be bound here")
    assert ask(address, "/livez") == (200, "live\n")
    assert ask(address, "/readyz") == (503, "start: the service is still starting\n")
    world.health.announce()
    world.health.look(world.clock.monotonic_ns())
    assert ask(address, "/readyz") == (200, "ready\n")
    assert ask(address, "/metrics")[0] == 200
    for path in ("/", "/healthz", "/metrics/x", "/readyz/"):
        status, text = ask(address, path)
        assert status == 404
        assert "known are /metrics, /livez, /readyz" in text


def test_metrics_address_without_port_is_refused() -> None:
    with pytest.raises(StartRefusedError, match="HOST:PORT"):
        start_metrics(runtime(), "localhost")
