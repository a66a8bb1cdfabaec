"""The data directory of a local cluster: what lies where in `--data DIR`.

DIR/cluster.json            what runs (cluster_file.py)
DIR/quorum.json             which controllers the cluster was begun with (quorum_file.py)
DIR/supervisor.lock         held by the running `ponor up`
DIR/control.sock            where `ponor node` talks to it (control.py)
DIR/config/ROLE-N.json      configuration of one process: `python -m ponor_ROLE --config FILE` runs it alone
DIR/run/ROLE-N.json         written by the process once it serves
DIR/logs/ROLE-N.log         what the process had to say
DIR/ROLE-N/                 the process's own data
DIR/objects/                the object store, unless --object-store says otherwise
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
    "quorum.json": "restore it from a copy, and do not remove it: it names the cluster and its controllers, and without it `ponor up` begins another cluster",
    "cluster.json": "remove it, and give `ponor up` the options of the last start: the number of brokers and the object store stood in it",
}
"""What to do with a file that is damaged, where it does not follow from the options of the next start."""
UNIX_SOCKET_PATH_BYTES_MAX = 100
"""The kernel takes 107; a path above this is replaced by one under /tmp (control.py)."""


@dataclass(frozen=True, slots=True)
class ClusterDirectory:
    """Paths below one data directory."""

    root: Path

    @property
    def cluster_file(self) -> Path:
        """What runs."""
        return self.root / "cluster.json"

    @property
    def quorum_file(self) -> Path:
        """The controllers that the cluster was begun with."""
        return self.root / "quorum.json"

    @property
    def objects(self) -> Path:
        """Root of the default object store."""
        return self.root / "objects"

    def config_file(self, name: str) -> Path:
        """Configuration of the process `ROLE-N`."""
        return self.root / "config" / f"{name}.json"

    def ready_file(self, name: str) -> Path:
        """Written by the process `ROLE-N` once it serves."""
        return self.root / "run" / f"{name}.json"

    def log_file(self, name: str) -> Path:
        """Output of the process `ROLE-N`."""
        return self.root / "logs" / f"{name}.log"

    def process_data(self, name: str) -> Path:
        """Data of the process `ROLE-N`."""
        return self.root / name

    def make(self) -> list[Path]:
        """Create the directories; those that were not there before, outermost first.

        Raises:
            CommandError: the place cannot be written; what was made is gone again.
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
        """Remove what a `ponor up` made that was refused before it started anything. A directory that was there before, or holds something, stays."""
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
        """Take the directory for one `ponor up`; released when the file is closed or the process ends.

        Raises:
            CommandError: another `ponor up` runs on it, or the place cannot be written.
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
                f"{self.root} is in use by another `ponor up` (pid {owner}); stop that one or choose another --data"
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        return handle


def write_json_atomically(path: Path, value: Any) -> None:
    """Replace a file's content so that a reader sees the old or the new one, never a part.

    Raises:
        OSError: it cannot be written, and is what it was; names the file.
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
    """The content of a JSON file, or None if there is none.

    Raises:
        CommandError: the file is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CommandError(
            f"{path} is not valid JSON ({error}); {REMEDIES.get(path.name, 'remove it, `ponor up` writes it anew')}"
        ) from error
