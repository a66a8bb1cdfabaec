"""What a `ponor up` that was killed left behind: processes that end by themselves in a moment, and until then hold ports and directories that the next `ponor up` needs.

Nothing is killed here. Where the system does not tell the command line of a process (no /proc), nobody is waited for, and a port in use is refused by its number.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ponor_cli.cluster_file import ProcessEntry

ORPHANS_S_MAX: Final = 5.0
"""A process gives itself one second when its parent is gone (`ponor_runtime.lifecycle`); the rest is for a machine that is busy."""
GLANCE_S: Final = 0.05


def await_orphans(entries: Sequence[ProcessEntry]) -> list[ProcessEntry]:
    """Wait until none of these processes runs any more; those that outlast it."""
    deadline = time.monotonic() + ORPHANS_S_MAX
    while True:
        left = [entry for entry in entries if runs(entry)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(GLANCE_S)


def runs(entry: ProcessEntry) -> bool:
    """Whether the process is there; one that has got its number since has another command line."""
    if entry.pid is None:
        return False
    try:
        words = Path(f"/proc/{entry.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return entry.config_file.encode() in words
