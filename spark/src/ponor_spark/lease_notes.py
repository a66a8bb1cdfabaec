"""Records of leases to renew: one small file for each, in a private directory named by an environment
variable.

Planning workers write them and the lease keeper reads them. This module does not import the controller
client, because gRPC would cost a planning worker 6 MiB and a quarter of a CPU second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from ponor_spark.snapshot import Lease

LEASES_VARIABLE: Final = "PONOR_SPARK_LEASES"
"""Environment variable of the notes directory."""


@dataclass(frozen=True, slots=True)
class NotedLease:
    """A lease to renew. `used_ns` is the time of its last use, taken from the file's modification time."""

    lease_id: int
    ttl_ms: int
    controllers: tuple[str, ...]
    path: Path
    used_ns: int


class LeaseNotes:
    """The notes directory; None if no lease keeper runs on this machine."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> LeaseNotes:
        """Use the directory in `LEASES_VARIABLE` if it exists: an executor on another machine has the
        variable but not the directory.
        """
        named = environment.get(LEASES_VARIABLE)
        directory = None if not named else Path(named)
        return cls(directory if directory is not None and directory.is_dir() else None)

    def note(self, lease: Lease) -> None:
        """Record a lease for renewal. Best effort: an unrecorded lease is not renewed."""
        if self._directory is None:
            return
        content = {"lease": lease.lease_id, "ttl_ms": lease.ttl_ms, "controllers": lease.controllers}
        path = self._path(lease.lease_id, lease.controllers)
        fresh = path.with_suffix(f".new-{os.getpid()}")
        with suppress(OSError):
            fresh.write_text(json.dumps(content), encoding="utf-8")
            fresh.replace(path)

    def use(self, lease: Lease) -> None:
        """Record a use of the lease."""
        if self._directory is not None:
            with suppress(OSError):
                os.utime(self._path(lease.lease_id, lease.controllers))

    def forget(self, lease_id: int, controllers: Sequence[str]) -> None:
        """Remove the record of a closed or expired lease."""
        if self._directory is not None:
            self._path(lease_id, controllers).unlink(missing_ok=True)

    def noted(self) -> Iterator[NotedLease]:
        """Return all records, in any order."""
        if self._directory is None:
            return
        for path in sorted(self._directory.glob("*.lease")):
            with suppress(OSError, ValueError, KeyError, TypeError):  # closed in the meantime
                content = json.loads(path.read_text(encoding="utf-8"))
                yield NotedLease(
                    int(content["lease"]),
                    int(content["ttl_ms"]),
                    tuple(content["controllers"]),
                    path,
                    path.stat().st_mtime_ns,
                )

    def _path(self, lease_id: int, controllers: Sequence[str]) -> Path:
        """Return the file of a lease. It depends on the cluster: each cluster numbers leases from 1."""
        assert self._directory is not None
        cluster = sha256("\n".join(controllers).encode()).hexdigest()[:16]
        return self._directory / f"{lease_id}-{cluster}.lease"
