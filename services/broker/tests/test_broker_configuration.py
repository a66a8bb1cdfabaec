"""The configuration file of a broker: accepted and refused values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ponor_broker.configuration import BrokerConfiguration, read_configuration
from ponor_broker.serving import fence_after_ms
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.lifecycle import StartRefusedError

REQUIRED: dict[str, Any] = {
    "node_id": 65_536,
    "controllers": ["127.0.0.1:1"],
    "object_store": "file:///tmp/objects",
    "data": "broker",
}


def read(tmp_path: Path, **others: Any) -> BrokerConfiguration:
    path = tmp_path / "broker.json"
    path.write_text(json.dumps({**REQUIRED, **others}))
    return read_configuration(path)


@pytest.mark.parametrize(
    ("told", "kind"),
    [({}, WalKind.FILE), ({"wal": "file"}, WalKind.FILE), ({"wal": "object"}, WalKind.OBJECT)],
)
def test_wal_setting_selects_file_or_object_store(
    tmp_path: Path, told: dict[str, str], kind: WalKind
) -> None:
    assert read(tmp_path, **told).options.wal is kind


@pytest.mark.parametrize("wal", ["disk", "", 1, None])
def test_unknown_wal_kind_is_refused(tmp_path: Path, wal: object) -> None:
    with pytest.raises(StartRefusedError, match="is not one of file, object"):
        read(tmp_path, wal=wal)


def test_client_host_is_the_advertised_host_or_the_bound_one(tmp_path: Path) -> None:
    assert read(tmp_path, kafka_host="10.0.0.1").options.client_host == "10.0.0.1"
    told = read(tmp_path, kafka_host="0.0.0.0", advertised_host="broker.example")
    assert told.options.client_host == "broker.example"


def test_fence_bound_depends_on_the_kind_of_log_unless_it_is_set() -> None:
    assert fence_after_ms(-1, WalKind.OBJECT, 9_000) == 6_000
    assert fence_after_ms(-1, WalKind.FILE, 9_000) == 0, "no broker takes over a log on a disk"
    assert fence_after_ms(0, WalKind.OBJECT, 9_000) == 0
    assert fence_after_ms(500, WalKind.FILE, 9_000) == 500
