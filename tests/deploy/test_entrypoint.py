"""From a pod's environment to the configuration of its service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.containers import (
    ENTRY,
    ENTRYPOINT,
    broker_of,
    compactor_of,
    configuration_of,
    controller_of,
    gc_of,
)

CLUSTER = {
    "PONOR_CONTROLLERS": "c-0.c,c-1.c,c-2.c",
    "PONOR_OBJECT_STORE": "s3://bucket/prefix",
}


def test_a_brokers_id_comes_from_its_pods_ordinal(tmp_path: Path) -> None:
    broker = broker_of({**CLUSTER, "PONOR_POD": "demo-broker-2"}, tmp_path)
    assert broker.options.node_id == 2, "completed by the cluster's ordinal"
    assert broker.options.kafka_port == 9092
    assert broker.options.advertised_host == "demo-broker-2"
    assert broker.options.controllers == ("c-0.c:9090", "c-1.c:9090", "c-2.c:9090")
    assert broker.ready_file == Path("/run/ponor/ready.json")
    assert broker.metrics == "0.0.0.0:9404"
    assert broker.options.object_store == "s3://bucket/prefix"


def test_a_broker_listens_on_its_advertised_port(tmp_path: Path) -> None:
    surroundings = {
        **CLUSTER,
        "PONOR_POD": "demo-broker-3",
        "PONOR_KAFKA_PORT": "31000",
        "PONOR_KAFKA_PORT_STEP": "1",
        "PONOR_ADVERTISED_HOST": "{pod}.zone-{ordinal}.example",
    }
    broker = broker_of(surroundings, tmp_path)
    assert broker.options.kafka_port == 31003
    assert broker.options.advertised_host == "demo-broker-3.zone-3.example"


@pytest.mark.parametrize("wal", ["object", "file"])
def test_a_brokers_file_wal_is_in_the_configured_directory(tmp_path: Path, wal: str) -> None:
    broker = broker_of({**CLUSTER, "PONOR_POD": "b-0", "PONOR_WAL": wal}, tmp_path)
    assert broker.options.wal.name.lower() == wal


def test_by_default_a_brokers_log_is_in_the_object_store() -> None:
    assert configuration_of("broker", {**CLUSTER, "PONOR_POD": "b-0"})["wal"] == "object"


def test_controllers_use_the_same_names_for_each_other(tmp_path: Path) -> None:
    found = [
        controller_of({**CLUSTER, "PONOR_POD": f"c-{ordinal}", "PONOR_FORMAT": "true"}, tmp_path).options
        for ordinal in range(3)
    ]
    assert found[0].voters == found[1].voters == found[2].voters
    assert [voter.node_id for voter in found[0].voters] == [options.node_id for options in found]
    assert [voter.peer_address for voter in found[0].voters] == ["c-0.c:9091", "c-1.c:9091", "c-2.c:9091"]
    assert all(options.format for options in found)


def test_no_identity_is_derived_from_a_name() -> None:
    """Two releases with equal names must not share directory ids, and hence a cluster id and a namespace."""
    content = configuration_of("controller", {**CLUSTER, "PONOR_POD": "c-0", "PONOR_FORMAT": "true"})
    assert set(content["voters"][0]) == {"node_id", "peer_address", "service_address"}
    assert "cluster_id" not in content


def test_an_empty_volume_is_formatted_only_on_request(tmp_path: Path) -> None:
    assert controller_of({**CLUSTER, "PONOR_POD": "c-0"}, tmp_path).options.format is False


def test_collectors_have_their_own_ordinals(tmp_path: Path) -> None:
    pods = {"PONOR_POD": "demo-gc-1-7d9c5b6c4-x2k8v"}
    gc = gc_of({**CLUSTER, **pods, "PONOR_ORDINAL": "1"}, tmp_path)
    assert gc.options.node_id == 1001


def test_compactors_have_their_own_ordinals(tmp_path: Path) -> None:
    pods = {"PONOR_POD": "demo-compactor-1-7d9c5b6c4-x2k8v", "PONOR_ORDINAL": "1"}
    settings = json.dumps({"compaction_budget_bytes": 1 << 25})
    compactor = compactor_of({**CLUSTER, **pods, "PONOR_SETTINGS": settings}, tmp_path)
    assert compactor.options.node_id == 2001
    assert compactor.settings.compaction_budget_bytes == 1 << 25


def test_settings_reach_the_service(tmp_path: Path) -> None:
    settings = json.dumps({"connections_max": 77, "num_partitions": 4})
    broker = broker_of({**CLUSTER, "PONOR_POD": "b-0", "PONOR_SETTINGS": settings}, tmp_path)
    assert broker.settings.connections_max == 77


@pytest.mark.parametrize(
    ("role", "change", "word"),
    [
        ("gateway", {}, "gateway"),
        ("broker", {"PONOR_POD": "broker"}, "PONOR_ORDINAL"),
        ("broker", {"PONOR_CONTROLLERS": ""}, "PONOR_CONTROLLERS"),
        ("broker", {"PONOR_CONTROLLERS": "a,,b"}, "PONOR_CONTROLLERS"),
        ("broker", {"PONOR_CONTROLLERS": "a,a"}, "PONOR_CONTROLLERS"),
        ("broker", {"PONOR_OBJECT_STORE": ""}, "PONOR_OBJECT_STORE"),
        ("broker", {"PONOR_WAL": "tape"}, "PONOR_WAL"),
        ("broker", {"PONOR_KAFKA_PORT": "tcp://10.0.0.1:9092"}, "PONOR_KAFKA_PORT"),
        ("broker", {"PONOR_KAFKA_PORT": "65535", "PONOR_KAFKA_PORT_STEP": "9"}, "PONOR_KAFKA_PORT"),
        ("broker", {"PONOR_SETTINGS": "[]"}, "PONOR_SETTINGS"),
        ("broker", {"PONOR_SETTINGS": "{"}, "PONOR_SETTINGS"),
        ("broker", {"PONOR_CLUSTER_ORDINAL": "16384"}, "PONOR_CLUSTER_ORDINAL"),
        ("controller", {"PONOR_FORMAT": "yes"}, "PONOR_FORMAT"),
    ],
)
def test_an_invalid_environment_is_refused_by_name(role: str, change: dict[str, str], word: str) -> None:
    with pytest.raises(ENTRY.ConfigurationError, match=word):
        configuration_of(role, {**CLUSTER, "PONOR_POD": "b-1", **change})


def test_the_service_replaces_the_entrypoint_and_prints_its_own_refusals(tmp_path: Path) -> None:
    """A real process, because only the broker itself reads the store's URL."""
    surroundings = {
        **os.environ,
        **CLUSTER,
        "PONOR_POD": "b-0",
        "PONOR_RUN": str(tmp_path),
        "PONOR_DATA": str(tmp_path / "data"),
        "PONOR_LISTEN": "127.0.0.1",
        "PONOR_METRICS_PORT": "0",
        "PONOR_OBJECT_STORE": "ftp://nowhere",
    }
    (tmp_path / "ready.json").write_text("of a former life")
    command = [sys.executable, str(ENTRYPOINT), "broker"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "ponor_broker: object store URL 'ftp://nowhere'" in done.stderr
    assert not (tmp_path / "ready.json").exists()


def test_controllers_use_tls_if_files_are_given(tmp_path: Path) -> None:
    pod = {**CLUSTER, "PONOR_POD": "demo-controller-0"}
    assert controller_of(pod, tmp_path).options.peer_tls is None
    files = controller_of({**pod, "PONOR_PEER_TLS": "/etc/ponor/peer-tls"}, tmp_path).options.peer_tls
    assert files is not None
    named = (files.certificate, files.key, files.authorities)
    assert named == tuple(Path("/etc/ponor/peer-tls", name) for name in ("tls.crt", "tls.key", "ca.crt"))
