"""The configuration file of one controller process.

What lives here: the JSON object that `ponor up` writes and `python -m ponor_controller --config FILE` reads. Bounds of settings are in `settings`.

    {"data": DIR, "listen": "HOST:PORT", "cluster_ordinal": N, "cluster_id": "...", "ready_file": FILE, "metrics": "HOST:PORT", "settings": {NAME: VALUE}}

`data` and `listen` are required; everything else has a default. `node_id` is accepted and shown to people only, until there are several voters.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponor_runtime.identity import CLUSTER_ORDINAL_MAX, ClusterOrdinal
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.settings import load

from ponor_controller.app import ControllerOptions
from ponor_controller.settings import ControllerSettings

KNOWN = ("cluster_id", "cluster_ordinal", "data", "listen", "metrics", "node_id", "ready_file", "settings")
CLUSTER_ORDINAL_DEFAULT = 1


@dataclass(frozen=True, slots=True)
class ControllerConfiguration:
    """A parsed file."""

    options: ControllerOptions
    settings: ControllerSettings
    ready_file: Path | None
    metrics: str | None


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
    ordinal = content.get("cluster_ordinal", CLUSTER_ORDINAL_DEFAULT)
    if not isinstance(ordinal, int) or not 1 <= ordinal <= CLUSTER_ORDINAL_MAX:
        raise StartRefusedError(
            f"configuration {path}: cluster_ordinal {ordinal!r} is not within 1..{CLUSTER_ORDINAL_MAX}"
        )
    options = ControllerOptions(
        data=Path(content["data"]).absolute(),
        listen=content["listen"],
        cluster_ordinal=ClusterOrdinal(ordinal),
        cluster_id=str(content.get("cluster_id", "")),
    )
    ready_file = content.get("ready_file")
    return ControllerConfiguration(
        options,
        load(ControllerSettings, content.get("settings", {})),
        Path(ready_file) if ready_file else None,
        content.get("metrics"),
    )
