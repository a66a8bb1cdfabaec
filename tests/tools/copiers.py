"""Kafka's TransactionalMessageCopier, run with the Java client of any version from 2.8."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.peers.artifacts import KAFKA, clients, java
from tests.tools.java_programs import SHORT_LIVED

CLASS: Final = "org.apache.kafka.tools.TransactionalMessageCopier"
LIBRARIES: Final = ("kafka-tools", "argparse4j", "jackson-core", "jackson-databind", "jackson-annotations")
"""Jars that the copier needs besides the client."""


class Copier:
    """One copier with its transactional id, in a group. It ends when it reaches the end of its partitions."""

    def __init__(self, directory: Path, version: str, transactional_id: str, *words: str) -> None:
        self.transactional_id = transactional_id
        self.output = directory / f"{transactional_id}.out"
        jars = [str(jar) for name in LIBRARIES for jar in KAFKA.directory.glob(f"{name}-[0-9]*.jar")]
        path = ":".join([clients(version).class_path, *jars])
        self._command = [java(), *SHORT_LIVED, "-cp", path, CLASS, "--transactional-id", transactional_id]
        self._command += ["--group-mode", "--use-group-metadata", "--input-partition", "-1", *words]
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Start it."""
        self.starts += 1
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def has_reached_the_end(self) -> bool:
        """Whether it ended without an error."""
        return self._process is not None and self._process.poll() == 0

    def said(self) -> str:
        """Return the end of its output."""
        return self.output.read_text(errors="replace")[-2_000:]
