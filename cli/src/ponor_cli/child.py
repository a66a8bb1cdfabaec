"""One process that `ponor up` looks after."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ponor_cli.cluster_file import ProcessEntry
from ponor_cli.plan import ProcessSpec


@dataclass(slots=True)
class Child:
    """What it is to be, and what became of it.

    Attributes:
        spec: what was planned.
        entry: its line in `cluster.json`.
        process: its present or last life.
        watcher: follows it through its lives.
        wanted: it is started again when it ends.
        log_position: where the log of its present life begins.
    """

    spec: ProcessSpec
    entry: ProcessEntry
    process: asyncio.subprocess.Process | None = None
    watcher: asyncio.Task[None] | None = None
    wanted: bool = True
    log_position: int = 0

    @property
    def title(self) -> str:
        """`ROLE N`, as lines for people call it."""
        return f"{self.spec.role} {self.spec.number}"

    @property
    def runs(self) -> bool:
        """Whether there is a process now."""
        return self.process is not None and self.process.returncode is None
