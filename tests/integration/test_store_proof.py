"""The broker's start-up probe of its store: safe stores are proven and left clean, unsafe ones end
the start, silent ones count as unproven.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ponor_broker.store_proof import prove_store
from ponor_metadata.nouns.nodes import WalKind
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from s3stream.stores.probe import start_check
from s3stream.stores.probe.start_check import PROBE_PREFIX, Condition, UnsafeStoreError

from tests.integration.flawed_s3 import Flaw, FlawedS3

EXPIRES_ALL = (
    "<LifecycleConfiguration><Rule><ID>tidy</ID><Status>Enabled</Status><Filter><Prefix/></Filter>"
    "<Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>"
)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    monkeypatch.setattr(start_check, "PROBE_SECONDS_MAX", 600.0)
    disk = SystemDisk()
    yield Runtime(SystemClock(), SystemRandomness(), disk, GrpcNetwork(), Telemetry())
    disk.close()


async def test_a_directory_is_proven_and_left_clean(runtime: Runtime, tmp_path: Path) -> None:
    condition = await prove_store(f"file://{tmp_path}", runtime, {}, WalKind.OBJECT)
    assert condition is Condition.PROVEN
    assert [path.name for path in (tmp_path / "objects").rglob("*")] == [PROBE_PREFIX]


async def test_a_safe_server_is_proven_and_left_clean(runtime: Runtime) -> None:
    with FlawedS3() as server:
        condition = await prove_store(server.url, runtime, server.environment, WalKind.OBJECT)
        assert condition is Condition.PROVEN
        assert server.objects == {}


@pytest.mark.parametrize("flaw", [Flaw.IGNORES_CONDITIONS, Flaw.CHECKS_WITHOUT_LOCK])
async def test_an_unsafe_condition_is_refused_by_name(runtime: Runtime, flaw: Flaw) -> None:
    with FlawedS3(flaw) as server:
        with pytest.raises(UnsafeStoreError, match="If-None-Match") as refused:
            await prove_store(server.url, runtime, server.environment, WalKind.OBJECT)
        assert "ponor doctor storage" in str(refused.value)
        assert server.objects == {}


@pytest.mark.parametrize("wal", list(WalKind))
async def test_an_expiry_rule_is_refused_with_either_kind_of_log(runtime: Runtime, wal: WalKind) -> None:
    """Objects are in the store with either kind of log."""
    expected = "'tidy' deletes objects after 1 days"
    with FlawedS3(lifecycle=EXPIRES_ALL) as server, pytest.raises(UnsafeStoreError, match=expected):
        await prove_store(server.url, runtime, server.environment, wal)


async def test_a_file_wal_needs_no_race(runtime: Runtime) -> None:
    with FlawedS3(Flaw.IGNORES_CONDITIONS) as server:
        assert await prove_store(server.url, runtime, server.environment, WalKind.FILE) is Condition.UNPROVEN


async def test_a_slow_store_is_unproven(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start_check, "PROBE_SECONDS_MAX", 0.0)
    with FlawedS3() as server:
        condition = await prove_store(server.url, runtime, server.environment, WalKind.OBJECT)
    assert condition is Condition.UNPROVEN
    assert "wal_verify=always" in caplog.text


@pytest.mark.parametrize(
    ("wal", "meaning"),
    [
        (WalKind.FILE, "records stay on this disk until the store is reachable"),
        (WalKind.OBJECT, "no record is acknowledged until the store is reachable"),
    ],
)
async def test_an_unavailable_store_is_unproven_with_a_message(
    runtime: Runtime, caplog: pytest.LogCaptureFixture, wal: WalKind, meaning: str
) -> None:
    with FlawedS3() as server:
        pass  # it has stopped: no process answers at its address
    assert await prove_store(server.url, runtime, server.environment, wal) is Condition.UNPROVEN
    assert f"the object store {server.url} does not answer (" in caplog.text
    assert meaning in caplog.text
    assert ("could not prove" in caplog.text) == (wal is WalKind.OBJECT)


def test_a_broker_refuses_to_start_in_one_line(tmp_path: Path) -> None:
    with FlawedS3(Flaw.IGNORES_CONDITIONS) as server:
        configuration = {
            "node_id": 65_536,
            "controllers": ["127.0.0.1:1"],
            "object_store": server.url,
            "data": str(tmp_path / "broker"),
            "kafka_port": 0,
            "wal": "object",
        }
        path = tmp_path / "broker.json"
        path.write_text(json.dumps(configuration))
        done = subprocess.run(
            [sys.executable, "-m", "ponor_broker", "--config", str(path)],
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, **server.environment},
        )
    assert done.returncode == 1
    assert "If-None-Match is ignored here" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "broker").exists(), "a log in the store needs no directory"


async def test_another_broker_may_probe_concurrently(runtime: Runtime, tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    proofs = (prove_store(url, runtime, {}, WalKind.OBJECT) for _ in range(3))
    assert await asyncio.gather(*proofs) == [Condition.PROVEN] * 3
