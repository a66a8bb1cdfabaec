"""Which leases somebody wants to be kept alive: one small file for each, in a private directory whose name is in the environment.

What lives here: the notes, written where snapshots are opened and planned, read by whoever renews (`lease_keeper`). Nothing of controllers: planning only says that a lease is used, and
gRPC would cost its worker 6 MiB and a quarter of a CPU second for that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ponor_spark.snapshot import Lease

LEASES_VARIABLE: Final = "PONOR_SPARK_LEASES"
"""The directory of the notes."""


@dataclass(frozen=True, slots=True)
class NotedLease:
    """A lease that somebody wants to be renewed. `used_ns` is when it was used last, by the file's clock."""

    lease_id: int
    ttl_ms: int
    controllers: tuple[str, ...]
    path: Path
    used_ns: int


class LeaseNotes:
    """The directory; None: nobody keeps leases here."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> LeaseNotes:
        """What `LEASES_VARIABLE` names, if it is there: an executor on another machine has the variable, but no directory."""
        named = environment.get(LEASES_VARIABLE)
        directory = None if not named else Path(named)
        return cls(directory if directory is not None and directory.is_dir() else None)

    def note(self, lease: Lease, controllers: Sequence[str]) -> None:
        """Have it renewed. Best effort: a lease that is not noted lives for its time."""
        if self._directory is None:
            return
        content = {"lease": lease.lease_id, "ttl_ms": lease.ttl_ms, "controllers": list(controllers)}
        path = self._path(lease.lease_id)
        fresh = path.with_suffix(f".new-{os.getpid()}")
        with suppress(OSError):
            fresh.write_text(json.dumps(content), encoding="utf-8")
            fresh.replace(path)

    def use(self, lease_id: int) -> None:
        """It is used now."""
        if self._directory is not None:
            with suppress(OSError):
                os.utime(self._path(lease_id))

    def forget(self, lease_id: int) -> None:
        """It is closed, or over."""
        if self._directory is not None:
            self._path(lease_id).unlink(missing_ok=True)

    def noted(self) -> Iterator[NotedLease]:
        """All that are there, in any order."""
        if self._directory is None:
            return
        for path in sorted(self._directory.glob("*.lease")):
            with suppress(OSError, ValueError, KeyError, TypeError):  # closed meanwhile
                content = json.loads(path.read_text(encoding="utf-8"))
                yield NotedLease(
                    int(content["lease"]),
                    int(content["ttl_ms"]),
                    tuple(content["controllers"]),
                    path,
                    path.stat().st_mtime_ns,
                )

    def _path(self, lease_id: int) -> Path:
        assert self._directory is not None
        return self._directory / f"{lease_id}.lease"
