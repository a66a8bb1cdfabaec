"""The ready file: publishes a service's addresses and readiness to other processes.

An atomically replaced JSON file `{"pid": .., "addresses": {..}, "ready": true, "unmet": {..}}`. The service
writes it after binding all addresses and whenever its readiness changes. A hung process cannot update the
file, so probes use `/readyz`.
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
"""Maps the role of an address (`kafka`, `session`, `metrics`) to HOST:PORT or a URL."""


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """Content of a ready file."""

    pid: int
    addresses: dict[str, str]
    unmet: dict[str, str]
    """Reasons by condition; empty if the process is ready."""


def write_ready_file(path: Path, addresses: ServiceAddresses, unmet: Sequence[Unmet] = ()) -> None:
    """Replace the file atomically. Not durable: a crash of the machine also ends the process."""
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
    """Return the file's content, or None if it does not exist.

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
