"""The ready file: how a service tells the world that it serves, and where.

What lives here: an atomic JSON file `{"pid": .., "addresses": {..}}` that is written once everything is bound, and its reader. Whoever
started the process waits for the file; a half-written one is never seen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ServiceAddresses: TypeAlias = Mapping[str, str]
"""Role of an address (`kafka`, `session`, `metrics`) to the address itself: HOST:PORT, or a URL."""


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """What a ready file says."""

    pid: int
    addresses: dict[str, str]


def write_ready_file(path: Path, addresses: ServiceAddresses) -> None:
    """Replace the file atomically. Not durable: the process that it names does not survive a crash of the machine either."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(
        json.dumps({"pid": os.getpid(), "addresses": dict(addresses)}) + "\n", encoding="utf-8"
    )
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
        return ReadyFile(pid=int(content["pid"]), addresses=addresses)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a ready file: remove it and start the service again") from error
