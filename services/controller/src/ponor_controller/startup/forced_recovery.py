"""Forced recovery after the permanent loss of a majority: one controller continues alone.

The recovery runs on the directory of a stopped controller (docs/design/consensus.md#quorum-operations). It
appends one entry, which raises the incarnation and makes this directory the only voter. A membership is in
force as soon as it is in the log, so at the next start this controller elects itself and commits its whole
log, including entries that were not committed. Entries that only other controllers had are lost. Nothing else
changes, so an interrupted recovery can be repeated.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ponor.metadata.v1 import records_pb2
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.cluster import (
    EPOCH_BITS,
    INCARNATION_MAX,
    RECOVERIES_MAX,
    cluster_of,
    next_incarnation,
)
from ponor_metadata.nouns.quorum import QUORUM
from ponor_raft.entry import Entry, HardState
from ponor_raft.stored import StoredState
from ponor_runtime.identity import number_of_node
from ponor_runtime.network import Network
from ponor_runtime.runtime import Runtime

from ponor_controller.consensus.address_book import AddressBook
from ponor_controller.consensus.directory_identity import DirectoryIdentity, open_identity
from ponor_controller.consensus.errors import DirectoryInUseError, QuorumLivesError, WrongDirectoryError
from ponor_controller.consensus.introduction import request_identity
from ponor_controller.consensus.members import Member, members_of_rows, membership_of, voters_set
from ponor_controller.consensus.peer_frames import replica
from ponor_controller.consensus.record_log import RecordLog, RecordLogSettings
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_controller.startup.recovery import recover


@dataclass(frozen=True, slots=True)
class ForcedRecovery:
    """The result of a forced recovery.

    Attributes:
        cluster_id: id of the cluster.
        node_id: node id of the remaining controller.
        known_committed_index: the highest index that was certainly committed.
        last_index: the highest index that counts as committed now.
        last_term: term of the entry at `last_index`. The most complete of several logs is the one with the
            highest last term; for equal terms, the one with the highest last index.
        incarnation: the new incarnation.
        former_voters: node ids of the former voters.
    """

    cluster_id: str
    node_id: int
    known_committed_index: int
    last_index: int
    last_term: int
    incarnation: int
    former_voters: tuple[int, ...]


async def force_recovery(
    runtime: Runtime, settings: ControllerSettings, options: ControllerOptions
) -> ForcedRecovery:
    """Make one stopped controller the only voter; durable when this returns.

    Args:
        runtime: the outside world; its network reaches the other controllers.
        settings: the controller's settings.
        options: the controller's options.

    Raises:
        DirectoryInUseError: the controller runs.
        QuorumLivesError: a majority of the voters runs.
        WrongDirectoryError: the directory has no log of a cluster.
        RecordLogCorruptError: the log is damaged; choose another controller's directory.
    """
    try:
        lock = runtime.disk.lock(options.data)
    except BlockingIOError as error:
        raise DirectoryInUseError(f"a controller runs on {options.data}; stop it first") from error
    try:
        identity = await open_identity(
            runtime.disk, options.data, options.cluster_id, lambda: _refuse_empty(options)
        )
        if not identity.cluster_id:  # `formatted` is written a moment after the first commit
            raise WrongDirectoryError(
                f"{options.data} never contained a log; choose another controller's directory"
            )
        log_settings = RecordLogSettings(settings.log_segment_bytes, 8 * settings.proposals_bytes_max)
        log = await RecordLog.open(
            runtime.disk, options.data, identity.directory_id, log_settings, runtime.telemetry
        )
        try:
            return await _append(runtime, log, settings, identity, options)
        finally:
            await log.close()
    finally:
        lock.release()


async def _append(
    runtime: Runtime,
    log: RecordLog,
    settings: ControllerSettings,
    identity: DirectoryIdentity,
    options: ControllerOptions,
) -> ForcedRecovery:
    stored = await log.recover(membership_of(identity.initial_voters))
    image = recover(log, stored, settings).image
    known_committed = image.index
    _apply_rest(image, stored)
    cluster = cluster_of(image)
    if cluster is None:
        raise WrongDirectoryError(f"{options.data}: its log ends before the cluster was formatted")
    incarnation = next_incarnation(
        cluster.incarnation, number_of_node(identity.node_id), runtime.randomness.below(1 << EPOCH_BITS)
    )
    if incarnation > INCARNATION_MAX:
        raise WrongDirectoryError(
            f"{options.data}: the cluster was recovered by force {RECOVERIES_MAX} times, and no epochs are"
            " left for one more"
        )
    await _refuse_living_quorum(runtime.network, image, identity, options)
    last_term = stored.entries[-1].term if stored.entries else stored.base.term
    term = stored.hard_state.term + 1
    own = Member(identity.node_id, identity.directory_id.bytes, options.peer_listen, options.listen)
    former = tuple(row.node_id for row in image[QUORUM] if row.voter)
    entry = _entry(image, term, incarnation, own)
    await _persist(log, HardState(term, identity.replica), entry)
    return ForcedRecovery(
        cluster.cluster_id, identity.node_id, known_committed, entry.index - 1, last_term, incarnation, former
    )


async def _refuse_living_quorum(
    network: Network, image: MetadataImage, identity: DirectoryIdentity, options: ControllerOptions
) -> None:
    """Refuse while a majority of the voters runs, because it would continue to use the same object store
    under the former incarnation.
    """
    voters = [member for member in members_of_rows(image[QUORUM]) if member.voter]
    addresses = AddressBook(options.voters)
    addresses.set_logged(voters)

    async def is_alive(voter: Member) -> bool:
        address = addresses.peer_address(voter.replica)
        answer = await request_identity(network, address) if address else None
        return answer is not None and replica(answer.replica) == voter.replica

    answers = await asyncio.gather(*map(is_alive, voters))
    living = [voter for voter, alive in zip(voters, answers, strict=True) if alive]
    if 2 * len(living) > len(voters) or identity.replica in [voter.replica for voter in living]:
        names = ", ".join(str(voter.node_id) for voter in living)
        raise QuorumLivesError(
            f"{len(living)} of the {len(voters)} voters run (node {names}): no forced recovery is needed. "
            "To recover by force anyway, stop every controller first"
        )


def _apply_rest(image: MetadataImage, stored: StoredState) -> None:
    """Apply the entries after the snapshot, committed or not, because the new entry follows them."""
    for entry in stored.entries:
        if entry.index > image.index:
            image.apply_committed(entry.data)


def _entry(image: MetadataImage, term: int, incarnation: int, own: Member) -> Entry:
    raised = records_pb2.IncarnationRaised(incarnation=incarnation)
    batch = records_pb2.RecordBatch(
        index=image.index + 1,
        term=term,
        cluster_time_ms=image.cluster_time_ms,
        records=[records_pb2.Record(incarnation_raised=raised), voters_set([own])],
    )
    return Entry(batch.index, term, batch.SerializeToString(deterministic=True), membership_of([own]))


async def _persist(log: RecordLog, hard_state: HardState, entry: Entry) -> None:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if error is None:
            durable.set_result(None)
        else:
            durable.set_exception(error)

    log.persist(hard_state, [entry], done)
    await durable


def _refuse_empty(options: ControllerOptions) -> DirectoryIdentity:
    raise WrongDirectoryError(f"{options.data} contains no data of a controller; choose another directory")
