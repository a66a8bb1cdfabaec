"""Tests of the collector's configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ponor_gc.configuration import read_configuration
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.settings import SettingError

GOOD = {
    "node_id": 66_536,
    "controllers": ["127.0.0.1:7000"],
    "object_store": "file:///somewhere",
    "data": "unused",
    "settings": {"claim_objects_max": "7"},
}


def _write(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "gc.json"
    content = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    path.write_text(json.dumps(content))
    return path


def test_valid_file_is_read(tmp_path: Path) -> None:
    configuration = read_configuration(
        _write(tmp_path, metrics="127.0.0.1:0", ready_file=str(tmp_path / "ready"))
    )
    assert configuration.settings.claim_objects_max == 7
    assert configuration.options.controllers == ("127.0.0.1:7000",)
    assert configuration.metrics == "127.0.0.1:0"
    assert configuration.ready_file == tmp_path / "ready"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"controllers": []}, "controllers"),
        ({"controllers": "127.0.0.1:7000"}, "controllers"),
        ({"node_id": None}, "node_id"),
        ({"object_store": None}, "object_store"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_invalid_file_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(StartRefusedError, match=named):
        read_configuration(_write(tmp_path, **changes))


def test_unknown_setting_and_invalid_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="claim_objects_max"):
        read_configuration(_write(tmp_path, settings={"claim_object_max": 1}))
    path = tmp_path / "gc.json"
    path.write_text("{")
    with pytest.raises(StartRefusedError, match=r"gc\.json"):
        read_configuration(path)
