"""The configuration file of one broker process.

`ponor up` writes this JSON object, and `python -m ponor_broker --config FILE` reads it:

    {"node_id": N, "controllers": ["HOST:PORT"], "object_store": URL, "data": DIR,
     "kafka_host": HOST, "kafka_port": PORT, "advertised_host": HOST, "wal": "file" | "object",
     "ready_file": FILE, "metrics": "HOST:PORT", "settings": {NAME: VALUE},
     "cluster_id": ID, "share_store": true | false}

The first four are required. `cluster_id` is the expected cluster; with `share_store` the store may
hold other clusters too. With `"wal": "object"` the directory `data` is not used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ponor_metadata.client.joining import Membership
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.identity import NodeId
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.settings import load

from ponor_broker.options import BrokerOptions
from ponor_broker.settings import BrokerSettings

KNOWN: Final = (
    "advertised_host",
    "cluster_id",
    "controllers",
    "data",
    "kafka_host",
    "kafka_port",
    "metrics",
    "node_id",
    "object_store",
    "ready_file",
    "settings",
    "share_store",
    "wal",
)
KAFKA_PORT_DEFAULT: Final = 9092
WALS: Final = {"file": WalKind.FILE, "object": WalKind.OBJECT}


@dataclass(frozen=True, slots=True)
class BrokerConfiguration:
    """A parsed file."""

    options: BrokerOptions
    settings: BrokerSettings
    object_store: str
    ready_file: Path | None
    metrics: str | None


def read_configuration(path: Path) -> BrokerConfiguration:
    """Read and check a file.

    Raises:
        StartRefusedError: names the problem.
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
    controllers = _required(path, content, "controllers", list, "a list of HOST:PORT")
    if not controllers or not all(isinstance(address, str) for address in controllers):
        raise StartRefusedError(
            f"configuration {path}: 'controllers' must be a list of HOST:PORT, with at least one"
        )
    node_id = _required(path, content, "node_id", int, "a number below 2^30")
    if not 0 <= node_id < 1 << 30:
        raise StartRefusedError(f"configuration {path}: node_id {node_id} is not within 0..{(1 << 30) - 1}")
    port = content.get("kafka_port", KAFKA_PORT_DEFAULT)
    if not isinstance(port, int) or not 0 <= port <= 65_535:
        raise StartRefusedError(f"configuration {path}: kafka_port {port!r} is not within 0..65535")
    options = BrokerOptions(
        node_id=NodeId(node_id),
        data=Path(_required(path, content, "data", str, "a directory")).absolute(),
        controllers=tuple(controllers),
        kafka_host=str(content.get("kafka_host", "127.0.0.1")),
        kafka_port=port,
        advertised_host=str(content.get("advertised_host", "")),
        object_store=_required(path, content, "object_store", str, "file://DIR or s3://BUCKET/PREFIX"),
        wal=_wal(path, content.get("wal", "file")),
        membership=Membership(str(content.get("cluster_id", "")), bool(content.get("share_store", False))),
    )
    ready_file = content.get("ready_file")
    return BrokerConfiguration(
        options,
        load(BrokerSettings, content.get("settings", {})),
        options.object_store,
        Path(ready_file) if ready_file else None,
        content.get("metrics"),
    )


def _wal(path: Path, name: object) -> WalKind:
    if not isinstance(name, str) or name not in WALS:
        raise StartRefusedError(f"configuration {path}: wal {name!r} is none of {', '.join(WALS)}")
    return WALS[name]


def _required(path: Path, content: dict[str, Any], name: str, kind: type[Any], what: str) -> Any:
    value = content.get(name)
    if not isinstance(value, kind):
        raise StartRefusedError(f"configuration {path}: {name!r} is missing; set it to {what}")
    return value
