"""Renewal of a driver's snapshot leases.

Snapshots are opened in short-lived planning workers of Spark; the driver's Python process lives as long as
the session. One thread of the driver renews the leases recorded in `lease_notes` and closes them at the end.
Beyond `LEASES_MAX` the least recently used leases expire, so that a long session does not pin the cluster's
storage. Without a keeper no lease is renewed.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.client.leader_calls import NoControllerError
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.clock import Clock
from ponor_runtime.system import SystemClock

from ponor_spark.lease_notes import LEASES_VARIABLE, LeaseNotes, NotedLease
from ponor_spark.loop_thread import LoopThread

LOG: Final = logging.getLogger("ponor.spark")
LEASES_MAX: Final = 64
"""Maximum leases that one driver renews."""
POLL_INTERVAL_S: Final = 0.5
RENEWALS_PER_TTL: Final = 3
ANSWER_S_MAX: Final = 10.0
CLOSE_S_MAX: Final = 5.0


class LeaseKeeper:
    """Renews the leases recorded in `directory`, in its own thread, until it is closed; then closes all of
    them.
    """

    def __init__(self, directory: Path, clock: Clock | None = None) -> None:
        """Start the thread."""
        self.directory: Final = directory
        self.notes: Final = LeaseNotes(directory)
        self._clock = clock or SystemClock()
        self._network = GrpcNetwork()
        self._renewed_at_ns: dict[Path, int] = {}
        self._renewing: dict[Path, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._loop = LoopThread("ponor-leases")
        self._closed = False
        self._loop.start(self._keep())

    def close(self) -> None:
        """Close every lease and remove the directory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(self._close_all())
        finally:
            self._loop.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            self._begin_renewals()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._stopping.wait()

    def _begin_renewals(self) -> None:
        """Renew the due leases concurrently, at most `LEASES_MAX`, so that an unreachable cluster does not
        delay the leases of another.
        """
        for lease in self._due():
            if lease.path not in self._renewing:
                renewing = asyncio.get_running_loop().create_task(self._renew_once(lease))
                self._renewing[lease.path] = renewing

    def _due(self) -> list[NotedLease]:
        """Return the leases whose last renewal is at least a third of their duration ago. Forget the least
        recently used leases beyond `LEASES_MAX`.
        """
        now_ns = self._clock.monotonic_ns()
        leases = sorted(self.notes.noted(), key=lambda lease: (-lease.used_ns, lease.path))
        for lease in leases[LEASES_MAX:]:
            LOG.warning(
                "snapshot lease %d is no longer renewed: this session loaded %d times since the"
                " last use of the lease",
                lease.lease_id,
                LEASES_MAX,
            )
            self.notes.forget(lease.lease_id, lease.controllers)
        kept = leases[:LEASES_MAX]
        self._renewed_at_ns = {lease.path: self._renewed_at_ns.get(lease.path, now_ns) for lease in kept}
        return [
            lease
            for lease in kept
            if now_ns - self._renewed_at_ns[lease.path] >= lease.ttl_ms * 1_000_000 // RENEWALS_PER_TTL
        ]

    async def _renew_once(self, lease: NotedLease) -> None:
        try:
            await self._renew(lease)
        finally:
            self._renewing.pop(lease.path, None)

    async def _renew(self, lease: NotedLease) -> None:
        client = ClusterClient(self._network, self._clock, lease.controllers)
        try:
            await client.renew_snapshot(lease.lease_id, lease.ttl_ms, timeout_s=ANSWER_S_MAX)
            self._renewed_at_ns[lease.path] = self._clock.monotonic_ns()
        except OperationError as error:
            # Do not retry a refused renewal: it would be refused until the session ends.
            LOG.warning("snapshot lease %d is no longer renewed: %s", lease.lease_id, error)
            self.notes.forget(lease.lease_id, lease.controllers)
        except NoControllerError as error:
            LOG.warning(
                "snapshot lease %d was not renewed, and the renewal will be retried: %s",
                lease.lease_id,
                error,
            )

    async def _close_all(self) -> None:
        self._stopping.set()
        renewals = list(self._renewing.values())
        for renewing in renewals:
            renewing.cancel()
        await asyncio.gather(*renewals, return_exceptions=True)
        leases = list(self.notes.noted())
        clients = {
            lease.controllers: ClusterClient(self._network, self._clock, lease.controllers)
            for lease in leases
        }
        await asyncio.gather(
            *(
                clients[lease.controllers].close_snapshot(lease.lease_id, timeout_s=CLOSE_S_MAX)
                for lease in leases
            ),
            return_exceptions=True,
        )
        await self._network.close()


@cache
def start_keeper() -> LeaseKeeper:
    """Return this process's keeper, started once and closed at exit; sets the environment variable of its
    directory.
    """
    keeper = LeaseKeeper(Path(tempfile.mkdtemp(prefix="ponor-spark-leases-")))
    os.environ[LEASES_VARIABLE] = str(keeper.directory)
    atexit.register(keeper.close)
    return keeper
