"""Kafka's TransactionalMessageCopier, run with Java clients from version 2.8 on."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Final

from tests.peers.artifacts import KAFKA, clients, java
from tests.tools.java_programs import SHORT_LIVED

CLASS: Final = "org.apache.kafka.tools.TransactionalMessageCopier"
LIBRARIES: Final = ("kafka-tools", "argparse4j", "jackson-core", "jackson-databind", "jackson-annotations")
"""Jars that the copier needs besides the client."""


class Copier:
    """One copier with its transactional id, in a group. It ends when it reaches the end of its partitions.

    Each start uses the next of some versions of the client.
    """

    def __init__(
        self, directory: Path, transactional_id: str, versions: tuple[str, ...], *words: str
    ) -> None:
        self.transactional_id = transactional_id
        self.output = directory / f"{transactional_id}.out"
        self._versions = versions
        self._words = ["--group-mode", "--use-group-metadata", "--input-partition", "-1", *words]
        self._process: subprocess.Popen[bytes] | None = None
        self._replaced: list[subprocess.Popen[bytes]] = []
        self.starts = 0

    def start(self) -> None:
        """Start a process."""
        version = self._versions[self.starts % len(self._versions)]
        self.starts += 1
        jars = [str(jar) for name in LIBRARIES for jar in KAFKA.directory.glob(f"{name}-[0-9]*.jar")]
        path = ":".join([clients(version).class_path, *jars])
        command = [java(), *SHORT_LIVED, "-cp", path, CLASS, "--transactional-id", self.transactional_id]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen([*command, *self._words], stdout=output, stderr=output)

    def stop(self) -> None:
        """Send SIGSTOP; the next start replaces the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self._replaced.append(self._process)
        self._process = None

    def resume(self) -> None:
        """Send SIGCONT to the processes that were replaced."""
        for process in self._replaced:
            process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to the newest process and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def kill_all(self) -> None:
        """Send SIGKILL to all processes and wait."""
        for process in filter(None, (self._process, *self._replaced)):
            process.kill()
            process.wait()

    @property
    def is_running(self) -> bool:
        """Whether its newest process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_alone(self) -> bool:
        """Whether all processes that were replaced have ended."""
        return all(process.poll() is not None for process in self._replaced)

    def said(self) -> str:
        """Return the end of its output."""
        return self.output.read_text(errors="replace")[-2_000:]
