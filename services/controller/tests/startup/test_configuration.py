"""The configuration file of a controller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ponor_controller.configuration import read_configuration
from ponor_controller.settings import ControllerSettings
from ponor_rpc.tls import TlsFiles
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.settings import SettingError, describe, load

GOOD = {"node_id": 68_536, "data": "controller-0", "listen": "127.0.0.1:7000", "cluster_ordinal": 9}


def _write(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "controller.json"
    content = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    path.write_text(json.dumps(content))
    return path


def test_a_valid_file_is_read(tmp_path: Path) -> None:
    configuration = read_configuration(_write(tmp_path, settings={"destroy_delay_ms": "1000"}))
    assert configuration.settings.destroy_delay_ms == 1_000
    assert configuration.options.data.is_absolute()
    assert (configuration.options.cluster_ordinal, configuration.metrics) == (9, None)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": None}, "data"),
        ({"listen": 7}, "listen"),
        ({"cluster_ordinal": 0}, "cluster_ordinal"),
        ({"cluster_ordinal": "1"}, "cluster_ordinal"),
        ({"lissten": "x"}, "lissten"),
    ],
)
def test_an_invalid_file_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(StartRefusedError, match=named):
        read_configuration(_write(tmp_path, **changes))


def test_an_unknown_setting_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="destroy_delay_ms"):
        read_configuration(_write(tmp_path, settings={"destroy_delay": 1}))
    with pytest.raises(StartRefusedError):
        read_configuration(tmp_path / "absent.json")


def test_every_setting_has_a_description_and_bounds_that_contain_its_default() -> None:
    for row in describe(ControllerSettings):
        assert row.doc.endswith("."), row.name
        load(ControllerSettings, {row.name: row.default})


VOTERS = [
    {
        "node_id": 592_824 + n,
        "peer_address": f"h{n}:1",
        "service_address": f"h{n}:2",
    }
    for n in range(3)
]


def test_voters_are_read(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        node_id=592_825,
        peer_listen="h1:1",
        voters=VOTERS,
        format=True,
        peer_tls={"certificate": "c", "key": "k", "authorities": "a"},
    )
    configuration = read_configuration(path)
    options = configuration.options
    assert (options.node_id, options.peer_listen, options.format) == (592_825, "h1:1", True)
    assert [voter.node_id for voter in options.voters] == [592_824, 592_825, 592_826]
    assert options.voters[1].directory_id == b"", "every directory draws its own"
    assert options.peer_tls == TlsFiles(Path("c"), Path("k"), Path("a"))


@pytest.mark.parametrize(
    ("said", "understood"), [({}, False), ({"format": False}, False), ({"format": True}, True)]
)
def test_a_controller_formats_only_if_configured(
    tmp_path: Path, said: dict[str, Any], understood: bool
) -> None:
    assert read_configuration(_write(tmp_path, **said)).options.format is understood


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"voters": VOTERS, "peer_listen": "h:1", "node_id": None}, "node_id"),
        ({"voters": VOTERS}, "peer_listen"),
        ({"voters": [{"node_id": 1}], "peer_listen": "h:1"}, "peer_address"),
        ({"voters": [VOTERS[0], VOTERS[0]], "peer_listen": "h:1"}, "twice"),
        ({"voters": ["h:1"], "peer_listen": "h:1"}, "is not a voter"),
        ({"peer_tls": {"certificate": "c"}}, "authorities"),
        ({"format": "no"}, "neither true nor false"),
    ],
)
def test_an_invalid_quorum_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(StartRefusedError, match=named):
        read_configuration(_write(tmp_path, **changes))
