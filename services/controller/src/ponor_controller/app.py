"""The composition root of the controller: builds every part by constructor, serves until told to stop, closes in order.

What lives here: construction and order, no decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from ponor_metadata.overlay import Overlay
from ponor_metadata.view import cluster_of
from ponor_rpc.methods import SESSION, SUBSCRIBE
from ponor_runtime.disk import DiskLock
from ponor_runtime.identity import ClusterOrdinal
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from ponor_controller.cluster_clock import ClusterClock
from ponor_controller.committed_batches import CommittedBatches
from ponor_controller.consensus.directory_identity import DirectoryIdentity, mark_formatted, open_identity
from ponor_controller.consensus.errors import (
    RESTORE_REMEDY,
    DirectoryInUseError,
    RecordLogCorruptError,
    WrongDirectoryError,
)
from ponor_controller.consensus.record_log import RecordLog, RecordLogSettings
from ponor_controller.consensus.single_voter import SingleVoter
from ponor_controller.formatting import format_records
from ponor_controller.proposals.driver import drive
from ponor_controller.proposals.executor import Executor
from ponor_controller.proposals.lanes import Lanes
from ponor_controller.proposals.proposer import Proposer
from ponor_controller.recovery import Recovered, recover
from ponor_controller.sessions.node_activity import NodeActivity
from ponor_controller.sessions.session_service import SessionService
from ponor_controller.settings import ControllerSettings
from ponor_controller.snapshotter import Snapshotter
from ponor_controller.subscriptions.image_source import ImageSource
from ponor_controller.subscriptions.subscription_service import SubscriptionService


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """What differs from one controller to another. `cluster_id` is empty, or the id that the directory must have."""

    data: PurePath
    listen: str
    cluster_ordinal: ClusterOrdinal
    cluster_id: str = ""


async def run(
    runtime: Runtime,
    settings: ControllerSettings,
    options: ControllerOptions,
    *,
    stop: asyncio.Event,
    ready: Callable[[ServiceAddresses], None],
) -> None:
    """Serve until `stop` is set.

    Raises:
        DirectoryInUseError, WrongDirectoryError, RecordLogCorruptError: the data directory cannot be used; the message says what to do.
        OSError: the address cannot be bound, or the disk failed.
    """
    await runtime.disk.make_directories(options.data)
    lock = _lock(runtime, options.data)
    try:
        identity = await open_identity(runtime.disk, options.data, runtime.randomness, options.cluster_id)
        log = await _open_log(runtime, settings, options.data, identity)
        try:
            await _serve(runtime, settings, options, identity, log, stop, ready)
        finally:
            await log.close()
    finally:
        lock.release()


async def _serve(
    runtime: Runtime,
    settings: ControllerSettings,
    options: ControllerOptions,
    identity: DirectoryIdentity,
    log: RecordLog,
    stop: asyncio.Event,
    ready: Callable[[ServiceAddresses], None],
) -> None:
    tasks = BackgroundTasks(runtime.fail_stop)
    recovered = await recover(log, settings)
    _check_recovered(recovered, identity, options)
    controller = Controller(runtime, settings, log, recovered, identity.cluster_id, tasks)
    try:
        if recovered.image.index == 0:
            await controller.format(options.cluster_ordinal)
        if not identity.formatted:
            await mark_formatted(runtime.disk, options.data, identity)
        controller.start()
        handlers = {SESSION: controller.sessions.handle, SUBSCRIBE: controller.subscriptions.handle}
        listener = await runtime.network.listen(options.listen, handlers)
        try:
            ready({"session": listener.address})
            await stop.wait()
        finally:
            await listener.close()
    finally:
        await tasks.close()


class Controller:
    """The parts of one controller, connected."""

    def __init__(
        self,
        runtime: Runtime,
        settings: ControllerSettings,
        log: RecordLog,
        recovered: Recovered,
        cluster_id: str,
        tasks: BackgroundTasks,
    ) -> None:
        self._runtime = runtime
        self._cluster_id = cluster_id
        self._tasks = tasks
        self.image = recovered.image
        consensus = SingleVoter(log, runtime.fail_stop)
        cluster_clock = ClusterClock(runtime.clock, self.image.cluster_time_ms)
        images = ImageSource(self.image)
        activity = self._activity = NodeActivity(runtime.clock, settings.session_timeout_ms)
        self._lanes = Lanes()
        self.proposer = Proposer(
            consensus, Overlay(self.image), cluster_clock, runtime.clock, settings, runtime.telemetry
        )
        self._executor = Executor(
            self.proposer, settings, runtime.randomness, activity.is_suspected, runtime.telemetry
        )
        self.sessions = SessionService(self.proposer, self._lanes, activity, cluster_id, settings)
        self.subscriptions = SubscriptionService(
            recovered.tail,
            images,
            cluster_id=cluster_id,
            cluster_time_ms=cluster_clock.now_ms,
            subscribers_max=settings.subscribers_max,
            progress_interval_ms=settings.progress_interval_ms,
        )
        snapshotter = Snapshotter(
            log,
            images,
            tasks,
            settings,
            runtime.telemetry,
            term=consensus.term,
        )
        snapshotter.recovered(recovered.applied_batches)
        committed = CommittedBatches(
            self.image, self.proposer, recovered.tail, self.subscriptions, snapshotter, runtime.telemetry
        )
        consensus.on_commit(committed.committed)
        self._show()

    async def format(self, ordinal: ClusterOrdinal) -> None:
        """Begin an empty log; returns when it is durable."""
        index = self.proposer.propose(format_records(self._cluster_id, ordinal, self._runtime.randomness))
        await self.proposer.committed_up_to(index)

    def start(self) -> None:
        """Begin to execute operations and to watch for silence."""
        self._tasks.spawn(drive(self._lanes, self._executor, self.proposer, self._runtime.clock), "proposals")
        self._tasks.spawn(self._activity.watch(self.image), "node-activity")

    def _show(self) -> None:
        telemetry = self._runtime.telemetry
        telemetry.gauge("ponor_controller_sessions", lambda: self.sessions.session_count)
        telemetry.gauge("ponor_controller_suspected_nodes", lambda: self._activity.suspected_count)
        telemetry.gauge("ponor_controller_subscriptions", lambda: self.subscriptions.subscriber_count)
        telemetry.gauge("ponor_controller_committed_index", lambda: self.image.index)


def _lock(runtime: Runtime, directory: PurePath) -> DiskLock:
    try:
        return runtime.disk.lock(directory)
    except BlockingIOError as error:
        raise DirectoryInUseError(
            f"{directory} is in use by another controller; stop it, or give another directory"
        ) from error


async def _open_log(
    runtime: Runtime, settings: ControllerSettings, directory: PurePath, identity: DirectoryIdentity
) -> RecordLog:
    log_settings = RecordLogSettings(
        segment_bytes=settings.log_segment_bytes,
        # Room for what may be in flight, and for a batch that was let in just before the bound was reached.
        queue_bytes_max=settings.proposals_bytes_max + 2 * settings.batch_bytes_max,
    )
    return await RecordLog.open(
        runtime.disk, directory, identity.directory_id, log_settings, runtime.telemetry
    )


def _check_recovered(recovered: Recovered, identity: DirectoryIdentity, options: ControllerOptions) -> None:
    """The directory's identity, the log and the configuration must speak of one cluster."""
    cluster = cluster_of(recovered.image)
    if cluster is None:
        if identity.formatted:
            raise RecordLogCorruptError(
                options.data, 0, "the log was formatted and is empty now", RESTORE_REMEDY
            )
        return
    if cluster.cluster_id != identity.cluster_id:
        raise WrongDirectoryError(
            f"{options.data}: the log is of cluster {cluster.cluster_id}, the file identity of {identity.cluster_id}; restore that file"
        )
    if cluster.cluster_ordinal != options.cluster_ordinal:
        raise WrongDirectoryError(
            f"{options.data}: cluster {cluster.cluster_id} has ordinal {cluster.cluster_ordinal}, not {options.cluster_ordinal}; "
            "ordinals never change, correct the configuration"
        )
