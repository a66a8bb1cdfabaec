"""Recovery of other processes' write-ahead logs that the image assigns to this process.

One task recovers one log, with retries. The number of concurrent tasks is bounded, and `takeover_bytes_max`
bounds the bytes that all of them hold. A recovery ends when its log is closed or assigned to another process.
Every step is conditional at the controller and repeatable, so an interrupted recovery does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_metadata.client.errors import NodeFencedError
from ponor_metadata.nouns.wals import WALS, WALS_RECOVERED_BY, WalRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeEpoch, NodeId
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from s3stream.errors import S3StreamError, StorageFailedError, WalCorruptError, WalNotHeldError
from s3stream.ports import OpenWal
from s3stream.recovery import RecoveryReport
from s3stream.settings import StorageSettings
from s3stream.takeover import recover_wal

from ponor_broker.node import Node
from ponor_broker.storage.start import StoragePorts


class Assignment(NamedTuple):
    """The assignment of one log to this process. Every new assignment has a higher token."""

    node_id: NodeId
    epoch: NodeEpoch
    token: int

    def __str__(self) -> str:
        return f"the write-ahead log of node {self.node_id}, epoch {self.epoch}"


def assigned_to(image: View, node_id: NodeId, epoch: NodeEpoch) -> list[Assignment]:
    """Return the logs that this process must recover. Assignments to an earlier
    process of the node are excluded.
    """
    rows = image[WALS].find(WALS_RECOVERED_BY, node_id)
    return [Assignment(row.node_id, row.wal_epoch, row.token) for row in rows if row.recoverer_epoch == epoch]


def row_of(image: View, assignment: Assignment) -> WalRow | None:
    """Return the log's row; None after the log was closed or assigned to another process."""
    row = image[WALS].get((assignment.node_id, assignment.epoch))
    return row if row is not None and row.token == assignment.token else None


def is_reassigned(image: View, assignment: Assignment) -> bool:
    """Return whether the log is open and now assigned to another process; False for a closed log, whose slots
    this process may still have to delete.
    """
    row = image[WALS].get((assignment.node_id, assignment.epoch))
    return row is not None and row.token != assignment.token


LOG: Final = logging.getLogger("ponor.broker.takeover")
RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 5.0
ALARM_RETRY_S: Final = 60.0
"""Pause before a log with missing acknowledged records is read again. The log can be recovered only after an
operator restored the records, or after the store returns them again.
"""
HELD_TWICE: Final = 2
"""A recovery holds up to two chunks: one being read and one being uploaded."""
_RECORDS: Final = frozenset({"wal_recovery_assigned", "wal_closed"})


class Recoverer:
    """Recovers assigned logs. `recover_own` runs before clients are accepted, `run` as a task from
    then on.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: StorageSettings,
        node: Node,
        ports: StoragePorts,
        tasks: BackgroundTasks,
        *,
        in_flight_max: int,
        bytes_max: int,
    ) -> None:
        self._runtime = runtime
        self._node = node
        self._ports = ports
        self._tasks = tasks
        share = bytes_max // in_flight_max // HELD_TWICE
        self._settings = replace(
            settings, recovery_chunk_bytes_max=min(share, settings.recovery_chunk_bytes_max)
        )
        self._places = asyncio.Semaphore(in_flight_max)
        self._changed = asyncio.Event()
        self._running: dict[Assignment, asyncio.Task[None]] = {}
        self._over: dict[Assignment, None] = {}  # finished, but possibly still assigned in the image
        self._duration = runtime.telemetry.histogram("ponor_wal_takeover_seconds")
        runtime.telemetry.gauge("ponor_wal_takeovers_running", lambda: len(self._running))

    async def recover_own(self) -> None:
        """Recover the logs of earlier processes of this node that are assigned to this process, because the
        node's partitions cannot open before these logs are recovered.

        Raises:
            WalCorruptError: acknowledged records are missing from a log; the message names them.
        """
        own = [each for each in self._assigned() if each.node_id == self._node.node_id]
        await asyncio.gather(*(self._recover(each, alarms=False) for each in own))

    def image_changed(self, batch: RecordBatch | None) -> None:
        """Handle an applied batch; None: the image was replaced."""
        if batch is None or any(record.WhichOneof("kind") in _RECORDS for record in batch.records):
            self._changed.set()

    async def run(self) -> None:
        """Recover the logs that the image assigns to this process, until cancelled."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._reconcile(self._assigned())

    def _assigned(self) -> list[Assignment]:
        return assigned_to(self._node.subscription.image, self._node.node_id, self._node.epoch)

    def _reconcile(self, wanted: Sequence[Assignment]) -> None:
        self._over = {each: None for each in self._over if each in wanted}
        for assignment, task in list(self._running.items()):
            if is_reassigned(self._node.subscription.image, assignment):
                task.cancel()
        for assignment in wanted:
            if assignment not in self._running and assignment not in self._over:
                self._running[assignment] = self._tasks.spawn(
                    self._run_one(assignment), f"recover {assignment}"
                )

    async def _run_one(self, assignment: Assignment) -> None:
        try:
            await self._recover(assignment, alarms=True)
        finally:
            del self._running[assignment]

    async def _recover(self, assignment: Assignment, *, alarms: bool) -> None:
        """Retry until the log is closed or reassigned. Without `alarms`, raise the error of a damaged log;
        with it, log the error and retry.
        """
        pause_s = RETRY_S
        while (log := self._log_of(assignment)) is not None:
            try:
                async with self._places:
                    await self._attempt(assignment, log)
                self._over[assignment] = None
                return
            except WalNotHeldError as error:
                # The loop ends when the image shows that the log was closed or reassigned.
                LOG.info("checking again whether this broker must recover %s: %s", assignment, error)
            except (StorageFailedError, NodeFencedError):
                return  # this process's epoch or session has ended; other tasks handle that
            except WalCorruptError as error:
                if not alarms:
                    raise
                LOG.critical("cannot recover %s; its streams stay closed: %s", assignment, error)
                pause_s = ALARM_RETRY_S
            except (S3StreamError, ObjectStoreError) as error:
                LOG.warning("recovering %s failed, retrying: %s", assignment, error)
            await self._runtime.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, max(pause_s, RETRY_S_MAX))

    def _log_of(self, assignment: Assignment) -> OpenWal | None:
        row = row_of(self._node.subscription.image, assignment)
        if row is None:
            return None
        return OpenWal(self._ports.wals.name_of(row.node_id, row.wal_epoch), row.trim_sequence)

    async def _attempt(self, assignment: Assignment, log: OpenWal) -> None:
        LOG.info("recovering %s from slot %d", assignment, log.trim_sequence)
        report = await recover_wal(
            runtime=self._runtime,
            store=self._ports.store,
            wal=log,
            manager=self._ports.wals,
            streams=self._ports.streams,
            objects=self._ports.objects,
            settings=self._settings,
            tasks=self._tasks,
        )
        self._duration.record(report.duration_ms * 1000)
        _tell(assignment, report)


def _tell(assignment: Assignment, report: RecoveryReport) -> None:
    LOG.info(
        "recovered %s in %d ms: %d records, %d bytes uploaded; %d streams closed; %d records had been"
        " uploaded earlier",
        assignment,
        report.duration_ms,
        report.records,
        report.bytes,
        report.streams,
        report.skipped_committed,
    )
