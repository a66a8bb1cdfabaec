"""Run one controller: lock and open its directory, bind its ports, serve until stopped, then close in
order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import PurePath
from typing import Any, Final

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import cluster_of
from ponor_raft.ready import Leadership
from ponor_raft.stored import StoredState
from ponor_rpc.methods import PEER, service_name
from ponor_runtime.disk import DiskLock
from ponor_runtime.identity import UNKNOWN_ORDINAL, number_of_node
from ponor_runtime.network import Network
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from ponor_controller.consensus.address_book import Addresses, reachable
from ponor_controller.consensus.admission import Admission
from ponor_controller.consensus.directory_identity import (
    DirectoryIdentity,
    mark_formatted,
    open_identity,
    write_identity,
)
from ponor_controller.consensus.errors import (
    RESTORE_REMEDY,
    DirectoryInUseError,
    RecordLogCorruptError,
    WrongDirectoryError,
)
from ponor_controller.consensus.members import membership_of
from ponor_controller.consensus.record_log import RecordLog, RecordLogSettings
from ponor_controller.controller import Controller
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_controller.startup.formation import ClusterExistsError, blank_identity, form
from ponor_controller.startup.listeners import Listeners
from ponor_controller.startup.readiness import Readiness
from ponor_controller.startup.recovery import Recovered, recover

LOG: Final = logging.getLogger("ponor.controller")
FORMATTED_BY_INDEX = 8
"""Highest index at which the batch that formats the cluster is expected. Only the opening entries of leaders
can precede this batch.
"""

Ready = Callable[[ServiceAddresses], None]


async def run(
    runtime: Runtime,
    settings: ControllerSettings,
    options: ControllerOptions,
    *,
    stop: asyncio.Event,
    ready: Ready,
    peer_network: Network | None = None,
) -> None:
    """Serve until `stop` is set.

    Args:
        runtime: clock, disk, network, randomness, telemetry.
        settings: must be the same at all controllers.
        options: of this controller.
        stop: ends the service.
        ready: called once with the addresses. A sole voter leads by then; several voters may still be
            electing a leader.
        peer_network: connects controllers; default: the runtime's network.

    Raises:
        DirectoryInUseError, WrongDirectoryError, RecordLogCorruptError: the data directory cannot be used;
            the message names the remedy.
        OSError: an address cannot be bound, or the disk failed.
    """
    await runtime.disk.make_directories(options.data)
    lock = _lock(runtime, options.data)
    listeners = Listeners(runtime.network, peer_network or runtime.network)
    # The peer port is served before the controller is ready, because the election needs it.
    runtime.health.require_for(service_name(PEER), lambda: listeners.refusal_of(PEER))
    try:
        identity = await open_identity(
            runtime.disk, options.data, options.cluster_id, lambda: _new_identity(runtime, options)
        )
        _check_node(identity, options)
        await listeners.open(options.listen, options.peer_listen)
        if not identity.cluster_id:
            runtime.health.require(
                "membership",
                lambda: "this controller belongs to no cluster yet and waits until it is added to one",
            )
            ready = Once(ready)
            admitted = await _until(stop, _become_member(runtime, options, identity, listeners, ready))
            if admitted is None:
                return
            identity = admitted
            await write_identity(runtime.disk, options.data, identity)
        log = await _open_log(runtime, settings, options.data, identity)
        try:
            await _serve(runtime, settings, options, identity, log, listeners, stop, ready)
        finally:
            await log.close()
    finally:
        await listeners.close()
        lock.release()


async def _serve(
    runtime: Runtime,
    settings: ControllerSettings,
    options: ControllerOptions,
    identity: DirectoryIdentity,
    log: RecordLog,
    listeners: Listeners,
    stop: asyncio.Event,
    ready: Ready,
) -> None:
    tasks = BackgroundTasks(runtime.fail_stop)
    stored = await log.recover(membership_of(identity.initial_voters))
    recovered = recover(log, stored, settings)
    _check_recovered(recovered, stored, identity, options)
    controller = Controller(
        runtime,
        settings,
        options,
        identity,
        log,
        stored,
        recovered,
        tasks,
        listeners.peer_network,
        Addresses(*map(reachable, listeners.addresses)),
    )
    controller.consensus.on_leadership(_log_leader)
    Readiness(identity.replica, controller.driver, controller.leadership).contribute(runtime.health)
    try:
        controller.start()
        formatting = tasks.spawn(_remember_format(runtime, options, identity, controller), "formatted")
        if controller.consensus.is_sole_voter:
            await _until(stop, _lead(controller, formatting))
        listeners.serve(controller.handlers())
        ready(_addresses(listeners, identity))
        await stop.wait()
        await controller.consensus.transfer_before_stop()
        await listeners.close()
    finally:
        controller.close()
        await tasks.close()


async def _lead(controller: Controller, formatting: asyncio.Task[None]) -> None:
    """Wait until this controller leads, its first records are committed, and the directory is marked
    formatted.
    """
    await controller.leadership.began()
    await controller.proposer.commits.reached(controller.proposer.last_index)
    await asyncio.wait((formatting,))


async def _remember_format(
    runtime: Runtime, options: ControllerOptions, identity: DirectoryIdentity, controller: Controller
) -> None:
    """Mark the directory formatted after the first commit. From then on a start with an empty log fails."""
    if not identity.formatted:
        await controller.first_commit.wait()
        await mark_formatted(runtime.disk, options.data, identity)


async def _become_member(
    runtime: Runtime,
    options: ControllerOptions,
    identity: DirectoryIdentity,
    listeners: Listeners,
    ready: Ready,
) -> DirectoryIdentity:
    """Form a new cluster with other blank controllers, or wait until a cluster connects."""
    admission = Admission(identity, may_format=options.may_format)
    listeners.serve({PEER: admission.handle})
    try:
        if options.may_format:
            formation = form(options, identity, listeners.addresses, runtime, listeners.peer_network)
            formed = await _first_of(formation, admission.admitted)
            if not isinstance(formed, ClusterExistsError):
                return formed
            admission.may_format = False
            LOG.error("%s is not formatted: %s", options.data, formed)
        LOG.warning(
            "%s belongs to no cluster yet; add this controller with `%s`",
            options.data,
            _add_command(listeners, identity),
        )
        ready(_addresses(listeners, identity))
        return await admission.admitted
    finally:
        listeners.serve({})


async def _first_of(
    formation: Coroutine[Any, Any, DirectoryIdentity], admitted: asyncio.Future[DirectoryIdentity]
) -> DirectoryIdentity | ClusterExistsError:
    """Return the identity from the formation or from a member that connected, or the error that forbids
    formatting.
    """
    forming = asyncio.get_running_loop().create_task(formation, name="controller-formation")
    try:
        await asyncio.wait((forming, admitted), return_when=asyncio.FIRST_COMPLETED)
        return admitted.result() if admitted.done() else forming.result()
    except ClusterExistsError as error:
        return error
    finally:
        forming.cancel()
        await asyncio.gather(forming, return_exceptions=True)


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of `work`; None if `stop` is set first."""
    loop = asyncio.get_running_loop()
    working = loop.create_task(work, name="controller-start")
    stopping = loop.create_task(stop.wait(), name="controller-stop")
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def _add_command(listeners: Listeners, identity: DirectoryIdentity) -> str:
    return (
        f"ponor cluster quorum add-learner {identity.node_id} --directory {identity.directory_id} "
        f"--peer {listeners.addresses.peer} --service {listeners.addresses.service}"
    )


def _log_leader(leadership: Leadership) -> None:
    if leadership.leader is not None:
        LOG.info("term %d: node %d is the leader", leadership.term, leadership.leader.node_id)


class Once:
    """Passes on only the first call: a blank controller calls `ready` before it is added, and again later."""

    def __init__(self, ready: Ready) -> None:
        self._ready: Ready | None = ready

    def __call__(self, addresses: ServiceAddresses) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready(addresses)


def _new_identity(runtime: Runtime, options: ControllerOptions) -> DirectoryIdentity:
    """The identity of an empty directory.

    Raises:
        WrongDirectoryError: the options forbid formatting, and without a peer port no cluster can add this
            controller.
    """
    if not options.may_format and not options.peer_listen:
        raise WrongDirectoryError(
            f"{options.data} is empty: mount the directory of this controller, or begin a new cluster with"
            ' `format` ("format": true in the configuration)'
        )
    return blank_identity(options, runtime.randomness)


def _addresses(listeners: Listeners, identity: DirectoryIdentity) -> ServiceAddresses:
    peer = {"peer": listeners.addresses.peer} if listeners.addresses.peer else {}
    return {"session": listeners.addresses.service, **peer, "directory_id": str(identity.directory_id)}


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
        # The queue has room for all that the Raft core accepts: proposals, or appends of two successive
        # leaders.
        queue_bytes_max=8 * settings.proposals_bytes_max,
        trailing_entries=settings.log_trailing_batches,
        trailing_bytes_max=settings.log_trailing_bytes_max,
    )
    return await RecordLog.open(
        runtime.disk, directory, identity.directory_id, log_settings, runtime.telemetry
    )


def _check_node(identity: DirectoryIdentity, options: ControllerOptions) -> None:
    configured, ordinal = options.own_node_id, identity.cluster_ordinal
    is_same = number_of_node(identity.node_id) == number_of_node(configured)
    if options.node_id is not None and not is_same:
        raise WrongDirectoryError(
            f"{options.data} belongs to node {identity.node_id}, not {configured}; correct the configuration"
        )
    if UNKNOWN_ORDINAL not in (ordinal, options.cluster_ordinal) and ordinal != options.cluster_ordinal:
        raise WrongDirectoryError(
            f"{options.data}: cluster {identity.cluster_id} has ordinal {ordinal}, not"
            f" {options.cluster_ordinal}; ordinals never change, correct the configuration"
        )


def _check_recovered(
    recovered: Recovered, stored: StoredState, identity: DirectoryIdentity, options: ControllerOptions
) -> None:
    """Check that the directory's identity, the log and the configuration belong to one cluster."""
    if stored.base.index == 0 and not stored.entries:
        if identity.formatted:
            raise RecordLogCorruptError(
                options.data, 0, "the log is empty, although the directory was formatted", RESTORE_REMEDY
            )
        return
    logged = _logged_cluster(recovered, stored)
    if logged is None:
        return
    cluster_id, ordinal = logged
    if cluster_id != identity.cluster_id:
        raise WrongDirectoryError(
            f"{options.data}: the log belongs to cluster {cluster_id}, but the file identity names cluster"
            f" {identity.cluster_id}; restore the file identity"
        )
    if ordinal != identity.cluster_ordinal:
        raise WrongDirectoryError(
            f"{options.data}: the log has cluster ordinal {ordinal}, but the file identity has"
            f" {identity.cluster_ordinal}; restore the file identity"
        )


def _logged_cluster(recovered: Recovered, stored: StoredState) -> tuple[str, int] | None:
    """Id and ordinal of the cluster, from the image or from the beginning of the log."""
    cluster = cluster_of(recovered.image)
    if cluster is not None:
        return cluster.cluster_id, cluster.cluster_ordinal
    for entry in stored.entries[:FORMATTED_BY_INDEX]:
        for record in records_pb2.RecordBatch.FromString(entry.data).records:
            if record.WhichOneof("kind") == "cluster_formatted":
                return record.cluster_formatted.cluster_id, record.cluster_formatted.cluster_ordinal
    return None
