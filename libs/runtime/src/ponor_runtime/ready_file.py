"""The ready file: publishes a service's addresses and readiness to other processes.

An atomically replaced JSON file `{"pid": .., "addresses": {..}, "ready": true, "unmet": {..}}`. The service
writes it after binding all addresses and whenever its readiness changes. A hung process cannot update the
file, so probes use `/readyz`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from ponor_runtime.health import Unmet

ServiceAddresses: TypeAlias = Mapping[str, str]
"""Maps the role of an address (`kafka`, `session`, `metrics`) to HOST:PORT or a URL."""


def write_ready_file(path: Path, addresses: ServiceAddresses, unmet: Sequence[Unmet] = ()) -> None:
    """Replace the file atomically; not durably, because a crash of the machine also ends the process."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    content = {
        "pid": os.getpid(),
        "addresses": dict(addresses),
        "ready": not unmet,
        "unmet": {each.condition: each.reason for each in unmet},
    }
    temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
    temporary.replace(path)
