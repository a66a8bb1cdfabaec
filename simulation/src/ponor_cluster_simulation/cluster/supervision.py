"""The supervisor of a simulated cluster. It restarts processes that stopped. A stop without a valid reason
fails the run.

Valid reasons: an orderly stop, a fenced broker, a disk error before the stop, and damaged data at the start.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ponor_controller.consensus.errors import RecordLogCorruptError, WrongDirectoryError
from ponor_journal.errors import JournalCorruptError, JournalIdentityError
from ponor_metadata.client.errors import NodeFencedError
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import SimProcess
from ponor_simulation.simulation import Simulation
from s3stream.errors import StorageFailedError

from ponor_cluster_simulation.cluster.sim_cluster import SimCluster

POLL_S: Final = 0.05
REFUSALS: Final = (
    RecordLogCorruptError,
    WrongDirectoryError,
    JournalCorruptError,
    JournalIdentityError,
)
"""Errors of a controller that refuses to start on its data."""
FENCED: Final = (NodeFencedError, StorageFailedError)
"""Errors with which a fenced broker stops. It learns that it is fenced from the controllers' answer, or from
the fence in its write-ahead log.
"""
RESTART_S: Final = 0.3


class Supervisor:
    """Watches all processes of a run.

    Attributes:
        refused: services that refused to start on a damaged disk; they are not restarted.
    """

    def __init__(self, simulation: Simulation, cluster: SimCluster) -> None:
        self._simulation = simulation
        self._cluster = cluster
        self._failures_before: dict[str, tuple[Runtime | None, int]] = {}
        self._restarting: dict[str, None] = {}
        self.refused: dict[str, None] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(POLL_S)

    def check(self) -> None:
        """Check all processes.

        Raises:
            AssertionError: a process ended without a valid reason.
        """
        for process in self._simulation.processes.values():
            if process.name in self._cluster.processes:
                self._check_service(process)
            elif process.failure is not None:
                raise process.failure

    def _check_service(self, process: SimProcess) -> None:
        if process.running:
            runtime, _ = self._failures_before.get(process.name, (None, 0))
            if runtime is not process.runtime:
                self._failures_before[process.name] = (process.runtime, process.disk.failed_operations)
            return
        if process.failure is None and not process.finished:
            return  # a fault crashed it, and the injector restarts it
        if process.failure is not None and not self._is_excused(process, process.failure):
            raise AssertionError(f"{process.name} stopped: {process.failure!r}") from process.failure
        if process.name not in self._restarting and process.name not in self.refused:
            self._restarting[process.name] = None
            self._simulation.loop.call_later(
                RESTART_S, self._restart, process.name, context=self._simulation.loop.outside
            )

    def _restart(self, name: str) -> None:
        self._restarting.pop(name, None)
        if not self._cluster.processes[name].running and name not in self.refused:
            self._cluster.start(name)

    def _is_excused(self, process: SimProcess, failure: BaseException) -> bool:
        if isinstance(failure, AssertionError):
            return False
        if isinstance(failure, FENCED) and self._cluster.lost_rights(process.name):
            self._cluster.coverage.states["brokers that stopped because they were fenced"] += 1
            return True
        if process.name in self._cluster.flipped_bits and isinstance(failure, REFUSALS):
            if process.name not in self.refused:
                self._cluster.coverage.states["refusals to start on a disk with a flipped bit"] += 1
            self.refused[process.name] = None
            return True
        runtime, before = self._failures_before.get(process.name, (None, 0))
        if runtime is not process.runtime:
            before = 0
        if process.disk.failed_operations > before:
            self._cluster.coverage.states[f"stops after a disk error: {type(failure).__name__}"] += 1
            return True
        return False
