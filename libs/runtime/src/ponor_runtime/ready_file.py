"""The ready file: how a service tells other processes where it serves, and whether it is ready.

An atomic JSON file `{"pid": .., "addresses": {..}, "ready": true, "unmet": {..}}`, and its reader. The service writes it once everything is bound, and again
whenever its readiness changes; a half-written file is never seen. A process that does not run cannot change the file: probes ask `/readyz`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ponor_runtime.health import Unmet

ServiceAddresses: TypeAlias = Mapping[str, str]
"""Role of an address (`kafka`, `session`, `metrics`) to the address itself: HOST:PORT, or a URL."""


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """What a ready file says."""

    pid: int
    addresses: dict[str, str]
    unmet: dict[str, str]
    """Reasons by condition; empty: the process is ready."""


def write_ready_file(path: Path, addresses: ServiceAddresses, unmet: Sequence[Unmet] = ()) -> None:
    """Replace the file atomically. Not durable: the process that it names does not survive a crash of the machine either."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    content = {
        "pid": os.getpid(),
        "addresses": dict(addresses),
        "ready": not unmet,
        "unmet": {each.condition: each.reason for each in unmet},
    }
    temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_ready_file(path: Path) -> ReadyFile | None:
    """The file's content, or None if it is not there yet.

    Raises:
        ValueError: the file is not a ready file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        content = json.loads(text)
        addresses = {str(role): str(address) for role, address in content["addresses"].items()}
        unmet = {str(name): str(reason) for name, reason in content.get("unmet", {}).items()}
        return ReadyFile(pid=int(content["pid"]), addresses=addresses, unmet=unmet)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a ready file: remove it and start the service again") from error
