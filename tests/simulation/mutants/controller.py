"""Planted bugs of controllers, and their replacements."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final

from crc32c import crc32c
from ponor.controller.v1 import peer_service_pb2, subscription_service_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.consensus import introduction
from ponor_controller.consensus.directory_identity import DirectoryIdentity
from ponor_controller.consensus.record_log import OnDurable, RecordLog
from ponor_controller.consensus.snapshot_files import NAME_PREFIX, Snapshot, SnapshotFiles
from ponor_controller.consensus.snapshot_format import decode_header, header_bytes
from ponor_controller.domains.moves import rules
from ponor_controller.domains.nodes.registration import register_node
from ponor_controller.domains.objects import reclaim_duty, uploads
from ponor_controller.domains.objects.topic_purge import purge
from ponor_controller.domains.streams import operations as streams
from ponor_controller.kernel.decisions import Decision, Situation
from ponor_controller.kernel.executor import Executor
from ponor_controller.kernel.leadership import ControllerLeadership
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.operation import PendingOperation
from ponor_controller.server.sessions import session_service
from ponor_controller.server.sessions.session_service import SessionService
from ponor_controller.server.subscriptions.subscriber import Subscriber
from ponor_controller.server.subscriptions.subscription_service import SubscriptionService
from ponor_controller.startup import formation
from ponor_metadata.client.followed_image import FollowedImage, _SnapshotInTransit
from ponor_metadata.image import image, registry, snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.overlay import Overlay
from ponor_metadata.nouns.nodes import NODES, OPERATIONS
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_TOPIC, StreamRow
from ponor_metadata.tables.schema import View
from ponor_raft.entry import Entry, HardState
from ponor_rpc.errors import OperationError
from ponor_rpc.methods import SESSION
from ponor_runtime.durable_file import read_whole
from ponor_runtime.identity import NodeId
from ponor_runtime.network import Connection, Network
from ponor_runtime.observer_clock import ObserverClock
from ponor_simulation.disk import FlippedBit, SimDisk
from ponor_simulation.network import SimNetwork

from tests.simulation.mutants.mutant import Catch, Mutant, Patch, Patches, Suite, method, used_in

LOTS_MAX = 100
"""So many consecutive lots name every file of a controller, which has about ten."""

_persist = RecordLog.persist
_replay = Executor._replay
_register = SessionService._register
_contradiction = SessionService._contradiction
_connect = SimNetwork.connect
_send = SubscriptionService._send
_end_snapshot = FollowedImage.end_snapshot
_rot = SimDisk.rot


def persist_and_report(
    self: RecordLog, hard_state: HardState | None, entries: tuple[Entry, ...], on_durable: OnDurable
) -> None:
    """`RecordLog.persist`."""
    _persist(self, hard_state, entries, lambda error: None)
    asyncio.get_running_loop().call_soon(on_durable, None)


# Operations


def replay_nothing(self: Executor, pending: PendingOperation, digest: bytes) -> bool:
    """`Executor._replay`."""
    return False


def propose_without_result(
    self: Executor, pending: PendingOperation, decision: Decision, digest: bytes
) -> None:
    """`Executor._propose`."""
    records: list[records_pb2.Record] = decision.records
    index = self._proposer.propose(records, divisible=decision.divisible)
    decision.result.request_id = pending.operation.request_id
    self._answers.after_commit(pending, decision.result, decision.result.SerializeToString(), index)


def replay_by_id(self: Executor, pending: PendingOperation, digest: bytes) -> bool:
    """`Executor._replay`."""
    kept = self._proposer.view[OPERATIONS].get((pending.caller.node_id, pending.operation.request_id))
    return _replay(self, pending, digest if kept is None else kept.digest)


# Formation and leadership


def formats_beside_a_cluster() -> Patches:
    """A voter without a directory forms a new cluster; a silent voter counts as blank."""
    request_identity, held = introduction.request_identity, False

    async def guess(network: Network, address: str) -> peer_service_pb2.PeerIntroduction | None:
        answer = await request_identity(network, address)
        if answer is None and held:
            blank = peer_service_pb2.PeerReplica(node_id=1, directory_id=bytes(16))
            return peer_service_pb2.PeerIntroduction(replica=blank)
        return answer

    def ignore(_: DirectoryIdentity, answers: Sequence[peer_service_pb2.PeerIntroduction | None]) -> None:
        nonlocal held
        held = any(answer is not None and answer.cluster_id for answer in answers)

    return (
        *used_in("request_identity", guess, formation),
        *used_in("_refuse_known_cluster", ignore, formation),
        *used_in("_is_ready", lambda _, answer: answer is not None, formation),
    )


def forgets_open_streams() -> Patches:
    """From the second term on, a leader takes open streams for closed ones."""
    begun, check_open, open_stream = ControllerLeadership._begun, streams._check_open, rules.open_stream
    terms = 0

    def count(self: ControllerLeadership) -> None:
        nonlocal terms
        terms += 1
        begun(self)

    def check(row: StreamRow, wanted: wire.OpenStream, situation: Situation) -> None:
        check_open(row._replace(open=row.open and terms < 2), wanted, situation)

    return (
        method(ControllerLeadership._begun, count),
        *used_in("_check_open", check, streams),
        *used_in("open_stream", lambda *of: open_stream(*of) if terms < 2 else None, rules),
    )


# Objects and streams


def purge_without_keys(view: Overlay, topic_id: bytes, limit: int) -> list[records_pb2.Record]:
    """`topic_purge.purge`."""
    records = [each for each in purge(view, topic_id, limit) if not each.HasField("key_deleted")]
    if not records and not len(view[STREAMS].find(STREAMS_OF_TOPIC, topic_id.hex())):
        records = [records_pb2.Record(topic_purged=records_pb2.TopicPurged(topic_id=topic_id))]
    return records


# Sessions and nodes


async def register_unconfirmed(self: SessionService, hello: wire.Hello) -> Any:
    """`SessionService._register`."""
    try:
        register_node(hello, self._proposer.view, self._proposer.now_ms())
    except OperationError:
        await self._proposer.commits.reached(self._proposer.last_index)
        raise
    return await _register(self, hello)


def contradiction_of_any_cluster(self: SessionService, hello: wire.Hello) -> str:
    """`SessionService._contradiction`."""
    unnamed = wire.Hello()
    unnamed.CopyFrom(hello)
    unnamed.ClearField("cluster_id")
    return _contradiction(self, unnamed)


class _ClosedAfterAnswer:
    """A connection that `close` leaves open until the other end has sent a frame."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner
        self._is_answered = False

    async def send(self, frame: bytes) -> None:
        await self._inner.send(frame)

    def try_send(self, frame: bytes) -> bool:
        return self._inner.try_send(frame)

    async def receive(self) -> bytes:
        frame = await self._inner.receive()
        self._is_answered = True
        return frame

    async def close(self) -> None:
        if self._is_answered:
            await self._inner.close()


async def connect_carelessly(self: SimNetwork, address: str, method: str) -> Connection:
    """`SimNetwork.connect`."""
    connection = await _connect(self, address, method)
    return _ClosedAfterAnswer(connection) if method == SESSION else connection


def unobserved_ns(self: ObserverClock) -> int:
    """`ObserverClock.monotonic_ns`."""
    return self._clock.monotonic_ns()


def never_silent(self: NodeActivity, now_ns: int, window_ns: int | None = None) -> int | None:
    """`NodeActivity._most_silent_since`."""
    return None


def delete_unregistered(view: View, record: records_pb2.NodeUnregistered) -> None:
    """The rule of `node_unregistered`."""
    for operation in list(view[OPERATIONS]):
        if operation.node_id == record.node_id:
            view[OPERATIONS].delete((operation.node_id, operation.request_id))
    view[NODES].delete(NodeId(record.node_id))


UNREGISTERED = "node_unregistered"
UNREGISTERED_NUMBER = records_pb2.Record.DESCRIPTOR.fields_by_name[UNREGISTERED].number


# Subscriptions


async def send_what_is_here(
    self: SubscriptionService, subscriber: Subscriber, start: subscription_service_pb2.SubscribeStart
) -> None:
    """`SubscriptionService._send`."""
    if max(start.resume_index, start.seen_index) > self._tail.last_index:
        start = subscription_service_pb2.SubscribeStart(
            cluster_id=start.cluster_id, incarnation=start.incarnation
        )
    await _send(self, subscriber, start)


def begin_any_snapshot(self: FollowedImage, begin: subscription_service_pb2.SnapshotBegin) -> None:
    """`FollowedImage.begin_snapshot`."""
    self._snapshot = _SnapshotInTransit(begin)


async def end_any_snapshot(self: FollowedImage, end: subscription_service_pb2.SnapshotEnd) -> None:
    """`FollowedImage.end_snapshot`."""
    self._image = MetadataImage()
    await _end_snapshot(self, end)


# Snapshots whose digest and checksums are not compared. Rows show most flipped bits, because they cannot be
# read or contradict each other. The bit is therefore chosen in the newest snapshot, so that few seeds
# suffice.


class EqualToEverything(int):
    """A checksum that equals every other number."""

    def __ne__(self, _: object) -> bool:
        return False

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = int.__hash__


async def read_without_digest(self: SnapshotFiles, index: int) -> Snapshot:
    """`SnapshotFiles.read`."""
    path = self.path(index)
    data = await read_whole(self._disk, path)
    header = decode_header(data, path)
    return Snapshot(header, data[header_bytes(header.membership) :])


def rot_of_snapshot(self: SimDisk, lot: int) -> FlippedBit | None:
    """`SimDisk.rot`: tries lots until one names a bit of the newest snapshot; flips the other bits back."""
    snapshots = [
        str(directory / name)
        for directory, names in self.state.directories.items()
        for name in map(str, names.names)
        if name.startswith(NAME_PREFIX) and name.removeprefix(NAME_PREFIX).isdecimal()
    ]
    for each in range(lot, lot + LOTS_MAX):
        place = _rot(self, each)
        if place is None or (snapshots and place.path == max(snapshots)):
            return place
        self.flip_bit(PurePath(place.path), place.position, place.bit)
    return _rot(self, lot)


CONTROLLER_MUTANTS: Final = (
    Mutant(
        "controller_commit_before_durable",
        "A batch is committed and answered when it is handed to the log, before it is on the disk.",
        (method(RecordLog.persist, persist_and_report),),
        (
            Catch(
                Suite.CONTROLLER_LOG,
                "lost|older copy|RecordLogCorruptError|OBJECT_NOT_PREPARED|OFFSET_MISMATCH|STREAM_NOT_FOUND",
            ),
        ),
    ),
    Mutant(
        "controller_forgets_results",
        "A repeated operation is executed again instead of answered with the stored result.",
        (
            method(Executor._replay, replay_nothing),
            method(Executor._propose, propose_without_result),
        ),
        (Catch(Suite.CONTROLLER_LOG, "twice|OBJECT_NOT_PREPARED|OFFSET_MISMATCH"),),
    ),
    Mutant(
        "controller_formats_beside_a_cluster",
        "A controller that lost its directory forms a new cluster next to the existing one.",
        formats_beside_a_cluster,
    ),
    Mutant(
        "controller_ignores_seen_history",
        "A leader does not compare its log with what nodes have seen, so an older copy serves unnoticed.",
        used_in("lost_history", lambda *_: "", session_service),
    ),
    Mutant(
        "controller_believes_other_clusters",
        "A leader compares its log with what nodes of other clusters have seen, and then admits no node.",
        (method(SessionService._contradiction, contradiction_of_any_cluster),),
    ),
    Mutant(
        "failover_forgets_open_streams",
        "A new leader takes open streams for closed ones, so a partition gets a second owner.",
        forgets_open_streams,
        (Catch(Suite.SWARM, r"is open at epoch", 15),),
    ),
    Mutant(
        "operations_known_by_id_only",
        "A repeated request id is answered with the stored result, even for another operation.",
        (method(Executor._replay, replay_by_id),),
        (Catch(Suite.SWARM, r"invariant 27", 0),),
    ),
    Mutant(
        "purge_forgets_keys",
        "The purge of a deleted topic deletes its streams and leaves its keys.",
        used_in("purge", purge_without_keys, reclaim_duty),
    ),
    Mutant(
        "refused_hello_not_confirmed",
        "A leader refuses a Hello without confirming that it leads, so a deposed one stops live nodes.",
        (method(SessionService._register, register_unconfirmed),),
    ),
    Mutant(
        "session_keeps_refused_connections",
        "A session whose Hello is not accepted leaves its connection open.",
        (method(SimNetwork.connect, connect_carelessly),),
    ),
    Mutant(
        "silence_counts_own_absence",
        "Observed time advances while the process is paused, so nodes lose their full session timeout.",
        (
            method(ObserverClock.monotonic_ns, unobserved_ns),
            method(NodeActivity._most_silent_since, never_silent),
        ),
    ),
    Mutant(
        "snapshot_without_digest",
        "A controller loads a snapshot without checking its digest and checksums.",
        (
            method(SnapshotFiles.read, read_without_digest),
            method(SimDisk.rot, rot_of_snapshot),
            *used_in("crc32c", lambda data: EqualToEverything(crc32c(data)), snapshot),
        ),
        (Catch(Suite.SWARM, r"invariant (10|28)", 9),),
    ),
    Mutant(
        "subscription_goes_back",
        "A controller that is behind serves subscribers, and they accept it (etcd-io/etcd #15271).",
        (
            method(SubscriptionService._send, send_what_is_here),
            method(FollowedImage.begin_snapshot, begin_any_snapshot),
            method(FollowedImage.end_snapshot, end_any_snapshot),
        ),
        (Catch(Suite.SWARM, r"invariant 28", 0),),
    ),
    Mutant(
        "unregistration_forgets_epochs",
        "The row of an unregistered node is deleted, so its id begins at the first epoch again.",
        (
            Patch(registry.RULES, UNREGISTERED, delete_unregistered, is_item=True),
            Patch(
                image._RULES_BY_NUMBER,
                UNREGISTERED_NUMBER,
                (UNREGISTERED, delete_unregistered),
                is_item=True,
            ),
        ),
    ),
    Mutant(
        "upload_commit_without_epoch",
        "An upload is committed without checking the owner and epoch of its streams.",
        used_in("require_owner", lambda *_: None, uploads),
        (Catch(Suite.SWARM, r"invariant 14|its end cannot advance", 4),),
    ),
    Mutant(
        "upload_commit_without_prepared",
        "An upload is committed although its objects expired or were never prepared.",
        used_in("require_prepared", lambda *_: None, uploads),
        (Catch(Suite.SWARM, r"invariant 21", 4),),
    ),
)
