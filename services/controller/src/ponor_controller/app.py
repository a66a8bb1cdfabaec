"""The composition root of the controller: opens what is on disk, binds ports, serves until told to stop, closes in order.

What lives here: the order of a start and of a stop, and the checks that what was found belongs together. The parts themselves are built in `controller`.
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
from ponor_controller.startup.listeners import Doors
from ponor_controller.startup.readiness import Readiness
from ponor_controller.startup.recovery import Recovered, recover

LOG: Final = logging.getLogger("ponor.controller")
FORMATTED_BY_INDEX = 8
"""The batch that formats a cluster is the first that a leader proposes; before it are only opening entries of leaders that did not get so far."""

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
        runtime: the outside world.
        settings: the same for all controllers.
        options: of this one.
        stop: ends it.
        ready: called once, with the addresses. A quorum of one leads by then; a larger one may still have to find its leader.
        peer_network: carries what controllers say to each other; the runtime's network if none is given.

    Raises:
        DirectoryInUseError, WrongDirectoryError, RecordLogCorruptError: the data directory cannot be used; the message says what to do.
        OSError: an address cannot be bound, or the disk failed.
    """
    await runtime.disk.make_directories(options.data)
    lock = _lock(runtime, options.data)
    doors = Doors(runtime.network, peer_network or runtime.network)
    # A controller that is not ready yet has to answer its peers: they make each other ready.
    runtime.health.require_for(service_name(PEER), lambda: doors.refusal_of(PEER))
    try:
        identity = await open_identity(
            runtime.disk, options.data, options.cluster_id, lambda: _new_identity(runtime, options)
        )
        _check_node(identity, options)
        await doors.open(options.listen, options.peer_listen)
        if not identity.cluster_id:
            runtime.health.require("membership", lambda: "this controller is blank and waits to be added")
            ready = Once(ready)
            admitted = await _until(stop, _become_member(runtime, options, identity, doors, ready))
            if admitted is None:
                return
            identity = admitted
            await write_identity(runtime.disk, options.data, identity)
        log = await _open_log(runtime, settings, options.data, identity)
        try:
            await _serve(runtime, settings, options, identity, log, doors, stop, ready)
        finally:
            await log.close()
    finally:
        await doors.close()
        lock.release()


async def _serve(
    runtime: Runtime,
    settings: ControllerSettings,
    options: ControllerOptions,
    identity: DirectoryIdentity,
    log: RecordLog,
    doors: Doors,
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
        doors.peer_network,
        Addresses(*map(reachable, doors.addresses)),
    )
    controller.consensus.on_leadership(_tell)
    Readiness(identity.replica, controller.driver, controller.leadership).contribute(runtime.health)
    try:
        controller.start()
        formatting = tasks.spawn(_remember_format(runtime, options, identity, controller), "formatted")
        if controller.consensus.is_sole_voter:
            await _until(stop, _lead(controller, formatting))
        doors.serve(controller.handlers())
        ready(_addresses(doors, identity))
        await stop.wait()
        await controller.consensus.hand_over()
        await doors.close()
    finally:
        controller.close()
        await tasks.close()


async def _lead(controller: Controller, formatting: asyncio.Task[None]) -> None:
    """Until this controller leads, what it began with is committed, and the directory knows it."""
    await controller.leadership.began()
    await controller.proposer.committed_up_to(controller.proposer.last_index)
    await asyncio.wait((formatting,))


async def _remember_format(
    runtime: Runtime, options: ControllerOptions, identity: DirectoryIdentity, controller: Controller
) -> None:
    """From the first commit on an empty log is an error, never a reason to begin anew."""
    if not identity.formatted:
        await controller.first_commit.wait()
        await mark_formatted(runtime.disk, options.data, identity)


async def _become_member(
    runtime: Runtime, options: ControllerOptions, identity: DirectoryIdentity, doors: Doors, ready: Ready
) -> DirectoryIdentity:
    """A blank controller forms a new cluster with others, or waits until a cluster calls it."""
    admission = Admission(identity, may_format=options.may_format)
    doors.serve({PEER: admission.handle})
    try:
        if options.may_format:
            formation = form(options, identity, doors.addresses, runtime, doors.peer_network)
            formed = await _first_of(formation, admission.admitted)
            if not isinstance(formed, ClusterExistsError):
                return formed
            admission.may_format = False
            LOG.error("%s is not formatted: %s", options.data, formed)
        LOG.warning("%s is blank; it is let in by `%s`", options.data, _invitation(doors, identity))
        ready(_addresses(doors, identity))
        return await admission.admitted
    finally:
        doors.serve({})


async def _first_of(
    formation: Coroutine[Any, Any, DirectoryIdentity], admitted: asyncio.Future[DirectoryIdentity]
) -> DirectoryIdentity | ClusterExistsError:
    """What the formation or a caller made of this controller, or why it must not be formatted."""
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
    """What `work` returns, or None when `stop` came first."""
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


def _invitation(doors: Doors, identity: DirectoryIdentity) -> str:
    return (
        f"ponor cluster quorum add-learner {identity.node_id} --directory {identity.directory_id} "
        f"--peer {doors.addresses.peer} --service {doors.addresses.service}"
    )


def _tell(leadership: Leadership) -> None:
    if leadership.leader is not None:
        LOG.info("term %d: node %d leads", leadership.term, leadership.leader.node_id)


class Once:
    """Calls `ready` the first time only: a controller that was announced while it was blank is not announced again."""

    def __init__(self, ready: Ready) -> None:
        self._ready: Ready | None = ready

    def __call__(self, addresses: ServiceAddresses) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready(addresses)


def _new_identity(runtime: Runtime, options: ControllerOptions) -> DirectoryIdentity:
    """The identity of an empty directory.

    Raises:
        WrongDirectoryError: it may not be formatted, and no cluster could ever call this controller.
    """
    if not options.may_format and not options.peer_listen:
        raise WrongDirectoryError(
            f'{options.data} is empty: mount the directory of this controller, or begin a new cluster with `format` ("format": true in the configuration)'
        )
    return blank_identity(options, runtime.randomness)


def _addresses(doors: Doors, identity: DirectoryIdentity) -> ServiceAddresses:
    peer = {"peer": doors.addresses.peer} if doors.addresses.peer else {}
    return {"session": doors.addresses.service, **peer, "directory_id": str(identity.directory_id)}


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
        # Room for everything that the core lets in: own proposals, or what a leader and the one before it have under way to a follower.
        queue_bytes_max=8 * settings.proposals_bytes_max,
        trailing_entries=settings.log_trailing_batches,
        trailing_bytes_max=settings.log_trailing_bytes_max,
    )
    return await RecordLog.open(
        runtime.disk, directory, identity.directory_id, log_settings, runtime.telemetry
    )


def _check_node(identity: DirectoryIdentity, options: ControllerOptions) -> None:
    wanted, ordinal = options.own_node_id, identity.cluster_ordinal
    is_same = number_of_node(identity.node_id) == number_of_node(wanted)
    if options.node_id is not None and not is_same:
        raise WrongDirectoryError(
            f"{options.data} belongs to node {identity.node_id}, not {wanted}; correct the configuration"
        )
    if UNKNOWN_ORDINAL not in (ordinal, options.cluster_ordinal) and ordinal != options.cluster_ordinal:
        raise WrongDirectoryError(
            f"{options.data}: cluster {identity.cluster_id} has ordinal {ordinal}, not {options.cluster_ordinal}; "
            "ordinals never change, correct the configuration"
        )


def _check_recovered(
    recovered: Recovered, stored: StoredState, identity: DirectoryIdentity, options: ControllerOptions
) -> None:
    """The directory's identity, the log and the configuration must speak of one cluster."""
    if stored.base.index == 0 and not stored.entries:
        if identity.formatted:
            raise RecordLogCorruptError(
                options.data, 0, "the log was formatted and is empty now", RESTORE_REMEDY
            )
        return
    found = _cluster_in(recovered, stored)
    if found is None:
        return
    cluster_id, ordinal = found
    if cluster_id != identity.cluster_id:
        raise WrongDirectoryError(
            f"{options.data}: the log is of cluster {cluster_id}, the file identity of {identity.cluster_id}; restore that file"
        )
    if ordinal != identity.cluster_ordinal:
        raise WrongDirectoryError(
            f"{options.data}: the log says ordinal {ordinal}, the file identity {identity.cluster_ordinal}; restore that file"
        )


def _cluster_in(recovered: Recovered, stored: StoredState) -> tuple[str, int] | None:
    """Id and ordinal of the cluster, from the image or from the beginning of the log."""
    cluster = cluster_of(recovered.image)
    if cluster is not None:
        return cluster.cluster_id, cluster.cluster_ordinal
    for entry in stored.entries[:FORMATTED_BY_INDEX]:
        for record in records_pb2.RecordBatch.FromString(entry.data).records:
            if record.WhichOneof("kind") == "cluster_formatted":
                return record.cluster_formatted.cluster_id, record.cluster_formatted.cluster_ordinal
    return None
