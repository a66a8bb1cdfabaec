"""The configuration file of one controller process.

`ponor up` writes this JSON object and `python -m ponor_controller --config FILE` reads it.

    {"data": DIR, "listen": "HOST:PORT", "cluster_ordinal": N, "cluster_id": "...", "ready_file": FILE, "metrics": "HOST:PORT", "settings": {NAME: VALUE},
     "node_id": N, "peer_listen": "HOST:PORT", "format": true, "peer_tls": {"certificate": FILE, "key": FILE, "authorities": FILE},
     "voters": [{"node_id": N, "peer_address": "HOST:PORT", "service_address": "HOST:PORT"}]}

A `node_id` below 2^16 is a number within the cluster. `cluster_ordinal` is drawn when the cluster is
formatted, unless it is given. `format` is for the first start: it permits an empty directory to
become a voter of a new cluster.

`data` and `listen` are required; everything else has a default. With `voters`, `node_id` and `peer_listen` are required too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponor_rpc.tls import TlsFiles
from ponor_runtime.identity import CLUSTER_ORDINAL_MAX, UNKNOWN_ORDINAL, ClusterOrdinal, NodeId
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.settings import load

from ponor_controller.consensus.members import Member
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings

KNOWN = (
    "cluster_id",
    "cluster_ordinal",
    "data",
    "format",
    "listen",
    "metrics",
    "node_id",
    "peer_listen",
    "peer_tls",
    "ready_file",
    "settings",
    "voters",
)
TLS_FILES = ("certificate", "key", "authorities")


@dataclass(frozen=True, slots=True)
class ControllerConfiguration:
    """A parsed file."""

    options: ControllerOptions
    settings: ControllerSettings
    ready_file: Path | None
    metrics: str | None
    peer_tls: TlsFiles | None = None


def read_configuration(path: Path) -> ControllerConfiguration:
    """Read and check a file.

    Raises:
        StartRefusedError: names what is wrong with it.
        SettingError: names the setting.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StartRefusedError(f"configuration {path} cannot be read: {error}") from error
    for name in content:
        if name not in KNOWN:
            raise StartRefusedError(
                f"configuration {path}: {name!r} is not known; known are {', '.join(KNOWN)}"
            )
    for name in ("data", "listen"):
        if not isinstance(content.get(name), str):
            raise StartRefusedError(f"configuration {path}: {name!r} is missing; give a text")
    ordinal = content.get("cluster_ordinal", UNKNOWN_ORDINAL)
    if "cluster_ordinal" in content and (
        not isinstance(ordinal, int) or not 1 <= ordinal <= CLUSTER_ORDINAL_MAX
    ):
        raise StartRefusedError(
            f"configuration {path}: cluster_ordinal {ordinal!r} is not within 1..{CLUSTER_ORDINAL_MAX}"
        )
    voters = tuple(_voter(each, path) for each in content.get("voters", []))
    options = ControllerOptions(
        data=Path(content["data"]).absolute(),
        listen=content["listen"],
        cluster_ordinal=ClusterOrdinal(ordinal),
        cluster_id=str(content.get("cluster_id", "")),
        node_id=_node_id(content, path, required=bool(voters)),
        peer_listen=_text(content, "peer_listen", path, required=bool(voters)),
        voters=voters,
        format=_switch(content, "format", path),
    )
    if len({voter.node_id for voter in voters}) != len(voters):
        raise StartRefusedError(f"configuration {path}: a node is named twice in 'voters'; name each once")
    ready_file = content.get("ready_file")
    return ControllerConfiguration(
        options,
        load(ControllerSettings, content.get("settings", {})),
        Path(ready_file) if ready_file else None,
        content.get("metrics"),
        _peer_tls(content, path),
    )


def _node_id(content: dict[str, Any], path: Path, *, required: bool) -> NodeId | None:
    node_id = content.get("node_id")
    if node_id is None and not required:
        return None
    if not isinstance(node_id, int) or not 1 <= node_id < 1 << 30:
        raise StartRefusedError(f"configuration {path}: node_id {node_id!r} is not within 1..{(1 << 30) - 1}")
    return NodeId(node_id)


def _text(content: dict[str, Any], name: str, path: Path, *, required: bool) -> str:
    value = content.get(name, "")
    if not isinstance(value, str) or (required and not value):
        raise StartRefusedError(f"configuration {path}: {name!r} is missing; give a text")
    return value


def _switch(content: dict[str, Any], name: str, path: Path) -> bool:
    value = content.get(name, False)
    if not isinstance(value, bool):
        raise StartRefusedError(f"configuration {path}: {name} {value!r} is neither true nor false")
    return value


def _voter(content: Any, path: Path) -> Member:
    try:
        return Member(
            NodeId(int(content["node_id"])),
            b"",
            str(content["peer_address"]),
            str(content["service_address"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StartRefusedError(
            f"configuration {path}: {content!r} in 'voters' is no voter ({error}); "
            "give node_id, peer_address and service_address"
        ) from error


def _peer_tls(content: dict[str, Any], path: Path) -> TlsFiles | None:
    files = content.get("peer_tls")
    if files is None:
        return None
    if not isinstance(files, dict) or set(files) != set(TLS_FILES):
        raise StartRefusedError(f"configuration {path}: 'peer_tls' names {', '.join(TLS_FILES)}, all of them")
    return TlsFiles(*(Path(files[name]) for name in TLS_FILES))
