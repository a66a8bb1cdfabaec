"""Configuration file of one garbage collector process.

The file is a JSON object that `ponor up` writes and `python -m ponor_gc --config FILE` reads:

    {"node_id": N, "controllers": ["HOST:PORT"], "object_store": URL, "ready_file": FILE, "metrics": "HOST:PORT", "settings": {NAME: VALUE}}

`node_id`, `controllers` and `object_store` are required. `data` is accepted and ignored, because this service stores nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponor_metadata.client.joining import Membership
from ponor_runtime.identity import NodeId
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.settings import load

from ponor_gc.app import GcOptions
from ponor_gc.settings import GcSettings

KNOWN = (
    "cluster_id",
    "controllers",
    "data",
    "metrics",
    "node_id",
    "object_store",
    "ready_file",
    "settings",
    "share_store",
)


@dataclass(frozen=True, slots=True)
class GcConfiguration:
    """Parsed configuration file."""

    options: GcOptions
    settings: GcSettings
    object_store: str
    ready_file: Path | None
    metrics: str | None


def read_configuration(path: Path) -> GcConfiguration:
    """Read and validate a configuration file.

    Raises:
        StartRefusedError: the file is invalid; the message names the problem.
        SettingError: a setting is invalid; the message names it.
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
    controllers, node_id, store = (
        content.get("controllers"),
        content.get("node_id"),
        content.get("object_store"),
    )
    if (
        not isinstance(controllers, list)
        or not controllers
        or not all(isinstance(each, str) for each in controllers)
    ):
        raise StartRefusedError(f'configuration {path}: "controllers" must be a list of HOST:PORT')
    if not isinstance(node_id, int) or not isinstance(store, str):
        raise StartRefusedError(
            f'configuration {path}: "node_id" (a number) and "object_store" (a URL) are required'
        )
    ready_file = content.get("ready_file")
    return GcConfiguration(
        GcOptions(
            NodeId(node_id),
            tuple(controllers),
            Membership(str(content.get("cluster_id", "")), bool(content.get("share_store", False))),
        ),
        load(GcSettings, content.get("settings", {})),
        store,
        Path(ready_file) if ready_file else None,
        content.get("metrics"),
    )
