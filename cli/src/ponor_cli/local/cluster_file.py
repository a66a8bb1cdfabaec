"""`DIR/cluster.json`: the running processes. `ponor up` replaces the file at every change; commands
and tests read it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ponor_cli.errors import CommandError
from ponor_cli.local.directory import ClusterDirectory, read_json, write_json_atomically

HAS_SERVED_DEFAULT: Final = True
"""Value of `has_served` for files of earlier builds, which lack the field. An earlier start may have put data
into the object store. With True, `ponor up` refuses to start with a different object store.
"""


@dataclass(slots=True)
class ProcessEntry:
    """One process. `pid` is None while the process is down; `state` is one of starting, serving, stopped,
    dead, waiting.
    """

    role: str
    id: int
    node_id: int
    state: str = "starting"
    pid: int | None = None
    addresses: dict[str, str] = field(default_factory=dict)
    metrics_url: str | None = None
    config_file: str = ""
    log_file: str = ""
    restarts: int = 0

    @classmethod
    def planned(cls, directory: ClusterDirectory, role: str, number: int, node_id: int) -> ProcessEntry:
        """Return the entry of a process before its start."""
        name = f"{role}-{number}"
        return cls(
            role=role,
            id=number,
            node_id=node_id,
            config_file=str(directory.config_file(name)),
            log_file=str(directory.log_file(name)),
        )

    @property
    def name(self) -> str:
        """`ROLE-N`, as in file names and log lines."""
        return f"{self.role}-{self.id}"


@dataclass(slots=True)
class ClusterFile:
    """The whole file."""

    bootstrap: str
    controllers: list[str]
    object_store: str
    wal: str
    supervisor_pid: int | None
    processes: list[ProcessEntry]
    has_served: bool = False
    """Whether a broker of this directory has served clients, in this run or an earlier one."""

    def write(self, directory: ClusterDirectory) -> None:
        """Replace the file."""
        self.has_served = self.has_served or any(
            entry.role == "broker" and entry.state == "serving" for entry in self.processes
        )
        write_json_atomically(directory.cluster_file, asdict(self))

    @classmethod
    def read(cls, directory: ClusterDirectory) -> ClusterFile:
        """Read the file.

        Raises:
            CommandError: the file does not exist.
        """
        content = read_json(directory.cluster_file)
        if content is None:
            raise CommandError(
                f"no cluster in {directory.root} (no cluster.json); start one with `ponor up --data"
                f" {directory.root}`"
            )
        return cls.parse(content)

    @classmethod
    def parse(cls, content: dict[str, Any]) -> ClusterFile:
        """Build the object from the JSON value."""
        processes = [ProcessEntry(**entry) for entry in content["processes"]]
        return cls(**{"has_served": HAS_SERVED_DEFAULT, **content, "processes": processes})

    def add(self, directory: ClusterDirectory, role: str, number: int, node_id: int) -> ProcessEntry:
        """Add a process. The supervisor writes the file when the state of the process first changes."""
        entry = ProcessEntry.planned(directory, role, number, node_id)
        self.processes.append(entry)
        return entry

    def process(self, role: str, number: int) -> ProcessEntry:
        """Return the entry of one process.

        Raises:
            CommandError: the process does not exist.
        """
        for entry in self.processes:
            if entry.role == role and entry.id == number:
                return entry
        known = ", ".join(f"{entry.role} {entry.id}" for entry in self.processes)
        raise CommandError(f"this cluster has no {role} {number}; it has {known}")
