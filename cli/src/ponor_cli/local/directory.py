"""Paths in the data directory of a local cluster, its lock, and atomic JSON files.

DIR/cluster.json            running processes (cluster_file.py)
DIR/quorum.json             controllers of the cluster (quorum_file.py)
DIR/supervisor.lock         locked by the running `ponor up`
DIR/control.sock            control socket of `ponor up` (control.py)
DIR/config/ROLE-N.json      configuration of one process: `python -m ponor_ROLE --config FILE`
DIR/run/ROLE-N.json         written by the process when it serves
DIR/logs/ROLE-N.log         output of the process
DIR/ROLE-N/                 data of the process
DIR/objects/                the default object store
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from ponor_cli.errors import CommandError

REMEDIES: Final = {
    "quorum.json": (
        "restore it from a copy and do not remove it: it names the cluster and its controllers,"
        " and without it `ponor up` creates another cluster"
    ),
    "cluster.json": (
        "remove it and give `ponor up` the options of the last start: the file held the number of"
        " brokers and the object store"
    ),
}
"""Remedies for damaged files that the next start cannot create again from its options."""
UNIX_SOCKET_PATH_BYTES_MAX = 100
"""The kernel allows 107 bytes. `control.py` replaces a longer path with one under /tmp."""


@dataclass(frozen=True, slots=True)
class ClusterDirectory:
    """Paths below one data directory."""

    root: Path

    @property
    def cluster_file(self) -> Path:
        """The running processes."""
        return self.root / "cluster.json"

    @property
    def quorum_file(self) -> Path:
        """The controllers of the cluster."""
        return self.root / "quorum.json"

    @property
    def objects(self) -> Path:
        """Root of the default object store."""
        return self.root / "objects"

    def config_file(self, name: str) -> Path:
        """Configuration of the process `ROLE-N`."""
        return self.root / "config" / f"{name}.json"

    def ready_file(self, name: str) -> Path:
        """Written by the process `ROLE-N` when it serves."""
        return self.root / "run" / f"{name}.json"

    def log_file(self, name: str) -> Path:
        """Output of the process `ROLE-N`."""
        return self.root / "logs" / f"{name}.log"

    def process_data(self, name: str) -> Path:
        """Data of the process `ROLE-N`."""
        return self.root / name

    def make(self) -> list[Path]:
        """Create the directories. Returns the new ones, outermost first.

        Raises:
            CommandError: a directory cannot be created; the new ones are removed.
        """
        wanted = [
            *reversed(self.root.parents),
            self.root,
            *(self.root / name for name in ("config", "run", "logs")),
        ]
        made: list[Path] = []
        try:
            for path in wanted:
                if not path.is_dir():
                    path.mkdir(exist_ok=True)
                    made.append(path)
        except OSError as error:
            self.unmake(made)
            raise self._unusable(error) from error
        return made

    def unmake(self, made: Sequence[Path]) -> None:
        """Remove the directories that `make` created, after a refused start. Directories with
        contents stay.
        """
        if self.root in made:
            for path in (self.quorum_file, self.root / "supervisor.lock"):
                path.unlink(missing_ok=True)
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir()

    def _unusable(self, error: OSError) -> CommandError:
        return CommandError(
            f"cannot use {self.root} as data directory: {error.strerror}; choose another with --data"
        )

    def lock(self) -> IO[str]:
        """Lock the directory for one `ponor up`, until the file is closed or the process ends.

        Raises:
            CommandError: another `ponor up` uses it, or the lock file cannot be written.
        """
        try:
            handle = (self.root / "supervisor.lock").open("a+")
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            handle.close()
            raise CommandError(
                f"{self.root} is in use by another `ponor up` (pid {owner}); stop that one or"
                " choose another --data"
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        return handle


def write_json_atomically(path: Path, value: Any) -> None:
    """Replace the content of a file: a reader sees the old or the new content, never a part.

    Raises:
        OSError: the file cannot be written and is unchanged; names the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as handle:
            json.dump(value, handle, indent=2)
            handle.write("\n")
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_json(path: Path) -> Any | None:
    """Return the content of a JSON file, or None if the file does not exist.

    Raises:
        CommandError: the file is not valid JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CommandError(
            f"{path} is not valid JSON ({error});"
            f" {REMEDIES.get(path.name, 'remove it, `ponor up` writes it again')}"
        ) from error
