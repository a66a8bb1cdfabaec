"""Register a node process and give it an epoch.

The registration of a new incarnation fences the former process, raises the leader epoch of every partition
that the node leads, and assigns the recovery of the node's write-ahead logs in the store to the new process.
This is one batch unless the node leads more than `PARTITIONS_PER_BATCH_MAX` partitions. Then the first batch
fences the former process, and the last one registers the new process. The former process opens no streams in
between, so no stream is open at a leader epoch that was raised in between. A process that only connects again
(same incarnation) keeps its epoch. A process that registered before a forced recovery must stop, because the
recovery may have lost its registration and its commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.cluster import cluster_of, epoch_floor
from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow, WalKind, is_current, next_node_epoch
from ponor_metadata.nouns.quorum import QUORUM
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OPEN_AT
from ponor_metadata.nouns.topics import PARTITIONS, PARTITIONS_LED_BY, PartitionRow, next_leader_epoch
from ponor_metadata.nouns.wals import WALS, WALS_OF, WalRow
from ponor_metadata.tables.found import rows_after
from ponor_metadata.tables.schema import View
from ponor_runtime.host_port import HOST_CHARACTERS_MAX, PORT_MAX, split_host_port
from ponor_runtime.identity import NODE_ID_BOUND, NodeEpoch, NodeId, cluster_of_node

from ponor_controller.kernel.decisions import invalid, refuse

INCARNATION_BYTES = 16
WAL_KINDS = (0, *WalKind)
_PLACES = {WalKind.FILE: "a file", WalKind.OBJECT: "the object store"}
PARTITIONS_PER_BATCH_MAX: Final = 250
"""Leader epochs that one batch raises. Every subscriber applies a batch in one turn of its event loop."""
LISTENERS_MAX: Final = 16
"""Listeners of one broker beside the one for other brokers."""
LISTENER_NAME_CHARACTERS_MAX: Final = 64
ROLES = (records_pb2.NODE_ROLE_BROKER, records_pb2.NODE_ROLE_COMPACTOR, records_pb2.NODE_ROLE_GC)


@dataclass(frozen=True, slots=True)
class Raised:
    """The partitions whose leader epochs rose since the former process was fenced.

    Attributes:
        fenced_epoch: node epoch of the former process. If the node has another epoch now, start again.
        last: topic id and number of the last of these partitions, in the order of the index.
    """

    fenced_epoch: NodeEpoch
    last: tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Registration:
    """The epoch of a process, and the records that register it (none if it is registered already).

    If `raised` is set, the records do not register the process yet: decide again after their commit.
    """

    node_epoch: NodeEpoch
    records: list[records_pb2.Record]
    raised: Raised | None = None


def register_node(hello: wire.Hello, view: View, now_ms: int, raised: Raised | None = None) -> Registration:
    """Decide on a Hello.

    Args:
        hello: first frame of the process.
        view: the leader's view of the metadata.
        now_ms: cluster time.
        raised: the partitions that earlier batches of this registration handled; None for the first batch.

    Raises:
        OperationError: INVALID_REQUEST for a wrong cluster, id, role or address; NODE_FENCED or
            NODE_EPOCH_STALE for a process that lost its epoch; CONTROLLER_BEHIND if the process has seen a
            later incarnation of the quorum.
    """
    _check_cluster(hello, view)
    _check_hello(hello, view)
    _check_quorum_incarnation(hello, view)
    node_id = NodeId(hello.node_id)
    row = view[NODES].get(node_id)
    if row is not None and row.incarnation == hello.incarnation and row.node_epoch >= epoch_floor(view):
        if row.fenced:
            raise refuse(
                error_pb2.ERROR_CODE_NODE_FENCED,
                f"epoch {row.node_epoch} of node {node_id} was fenced; the process must stop",
            )
        return Registration(row.node_epoch, [])
    if hello.node_epoch:
        held = _held_by(row, hello)
        raise refuse(
            error_pb2.ERROR_CODE_NODE_EPOCH_STALE,
            f"node {node_id} {held}; the process of epoch {hello.node_epoch} must stop",
        )
    _check_role(hello, row, view)
    _check_wal_kind(hello, row, view)
    node_epoch = next_node_epoch(view, row)
    records = _fence(row)
    partitions = _next_partitions(view, node_id, row, raised)
    if len(partitions) > PARTITIONS_PER_BATCH_MAX:
        assert row is not None, "a node that never registered leads partitions"
        del partitions[PARTITIONS_PER_BATCH_MAX:]
        last = (partitions[-1].topic_id, partitions[-1].partition)
        records.extend(raise_leader_epoch(view, each) for each in partitions)
        return Registration(node_epoch, records, Raised(row.node_epoch, last))
    records.append(_registered(hello, node_epoch, now_ms))
    records.extend(raise_leader_epoch(view, each) for each in partitions)
    for wal in view[WALS].find(WALS_OF, node_id):
        if not _is_recovered_elsewhere(wal, view):
            records.append(assign_recovery(wal, node_id, node_epoch))
    return Registration(node_epoch, records)


def _next_partitions(
    view: View, node_id: NodeId, row: NodeRow | None, raised: Raised | None
) -> list[PartitionRow]:
    """Return the next partitions whose leader epochs must be raised.

    If there are more than `PARTITIONS_PER_BATCH_MAX`, return one more than this number.
    """
    led = view[PARTITIONS].find(PARTITIONS_LED_BY, node_id)
    rows = iter(led)
    if raised is not None and row is not None and row.fenced and row.node_epoch == raised.fenced_epoch:
        rows = rows_after(led, PARTITIONS_LED_BY, raised.last)
    return list(islice(rows, PARTITIONS_PER_BATCH_MAX + 1))


def _check_role(hello: wire.Hello, row: NodeRow | None, view: View) -> None:
    """Require the role that the node id is registered with.

    Without this check a garbage collector that is started with a broker's id would fence the broker.
    """
    role = NodeRole(hello.role).name.lower()
    if row is not None and row.role is not NodeRole.NONE and int(row.role) != hello.role:
        raise invalid(
            f"node {hello.node_id} is registered as a {row.role.name.lower()}: give this {role} another node"
            " id, or, if that node will not return, "
            f"free its id with `ponor cluster unregister {hello.node_id}`"
        )
    if any(member.node_id == hello.node_id for member in view[QUORUM]):
        raise invalid(f"node {hello.node_id} is a controller: give this {role} another node id")


def _held_by(row: NodeRow | None, hello: wire.Hello) -> str:
    if row is None:
        return "never registered"
    if row.incarnation == hello.incarnation:
        return "registered before the last forced recovery"
    return f"is at epoch {row.node_epoch} of another process"


def raise_leader_epoch(view: View, partition: PartitionRow) -> records_pb2.Record:
    """The record that raises the epoch of the present leader. It ends a move of the partition."""
    changed = records_pb2.PartitionChanged(
        topic_id=partition.topic_id,
        partition=partition.partition,
        leader_id=partition.leader_id,
        leader_epoch=next_leader_epoch(view, partition),
        replicas=[partition.leader_id],
    )
    return records_pb2.Record(partition_changed=changed)


def assign_recovery(wal: WalRow, recoverer_id: NodeId, recoverer_epoch: NodeEpoch) -> records_pb2.Record:
    """The record that assigns the recovery of a log in the store to a broker (a new one if need be)."""
    assigned = records_pb2.WalRecoveryAssigned(
        node_id=wal.node_id,
        wal_epoch=wal.wal_epoch,
        recoverer_id=recoverer_id,
        recoverer_epoch=recoverer_epoch,
        token=wal.token + 1,
    )
    return records_pb2.Record(wal_recovery_assigned=assigned)


def _is_recovered_elsewhere(wal: WalRow, view: View) -> bool:
    """Whether another broker that is not fenced recovers the log. If that broker fails, failover assigns the
    log again.
    """
    return wal.recoverer_id != wal.node_id and is_current(view, wal.recoverer_id, wal.recoverer_epoch)


def _check_quorum_incarnation(hello: wire.Hello, view: View) -> None:
    """Refuse a process that registered in a later incarnation of the quorum: a forced recovery has excluded
    this controller.
    """
    cluster = cluster_of(view)
    assert cluster is not None
    if hello.quorum_incarnation > cluster.incarnation:
        raise refuse(
            error_pb2.ERROR_CODE_CONTROLLER_BEHIND,
            f"node {hello.node_id} is registered in incarnation {hello.quorum_incarnation} of the quorum,"
            f" this controller is in incarnation {cluster.incarnation}: a forced recovery excluded this"
            " controller; stop it and start it with an empty directory",
        )


def _check_wal_kind(hello: wire.Hello, row: NodeRow | None, view: View) -> None:
    """Refuse to change between a log on disk and in the store while the old log may need recovery."""
    kind = _wal_kind(hello)
    if row is None or row.wal is kind:
        return
    if view[STREAMS].find(STREAMS_OPEN_AT, row.node_id) or view[WALS].find(WALS_OF, row.node_id):
        raise invalid(
            f"node {row.node_id} has its write-ahead log in {_PLACES[row.wal]} and may have acknowledged"
            " records there. To change the location, first start the node with that log and stop it cleanly,"
            " or wait until the log is recovered"
        )


def _wal_kind(hello: wire.Hello) -> WalKind:
    return WalKind(hello.wal or WalKind.FILE)


def _fence(row: NodeRow | None) -> list[records_pb2.Record]:
    if row is None or row.fenced:
        return []
    fenced = records_pb2.NodeFenced(node_id=row.node_id, node_epoch=row.node_epoch)
    return [records_pb2.Record(node_fenced=fenced)]


def _registered(hello: wire.Hello, node_epoch: NodeEpoch, now_ms: int) -> records_pb2.Record:
    registered = records_pb2.NodeRegistered(
        node_id=hello.node_id,
        node_epoch=node_epoch,
        role=hello.role,
        incarnation=hello.incarnation,
        kafka_host=hello.kafka_host,
        kafka_port=hello.kafka_port,
        registered_at_ms=now_ms,
    )
    registered.listeners.update(hello.listeners)
    if _wal_kind(hello) is WalKind.OBJECT:  # FILE is the default: older records have no kind
        registered.wal = hello.wal
    return records_pb2.Record(node_registered=registered)


def _check_cluster(hello: wire.Hello, view: View) -> None:
    """Refuse a process of another cluster.

    If the process registered before, the address belongs to another cluster now: CONTROLLER_BEHIND makes the
    process try other addresses. Otherwise its configuration is wrong: INVALID_REQUEST.
    """
    cluster = cluster_of(view)
    assert cluster is not None
    if hello.cluster_id not in ("", cluster.cluster_id):
        is_member = bool(hello.node_epoch)
        raise refuse(
            error_pb2.ERROR_CODE_CONTROLLER_BEHIND if is_member else error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"this is cluster {cluster.cluster_id}, not {hello.cluster_id}; check the controller's address",
        )


def _check_hello(hello: wire.Hello, view: View) -> None:
    cluster = cluster_of(view)
    assert cluster is not None
    problem: str | None = None
    if hello.role not in ROLES:
        problem = f"unknown role {hello.role}"
    elif (
        not 0 <= hello.node_id < NODE_ID_BOUND
        or cluster_of_node(NodeId(hello.node_id)) != cluster.cluster_ordinal
    ):
        problem = (
            f"node id {hello.node_id} does not belong to cluster ordinal {cluster.cluster_ordinal};"
            " a node id is ordinal << 16 | number"
        )
    elif hello.wal not in WAL_KINDS:
        problem = f"unknown kind {hello.wal} of a write-ahead log; upgrade the controller first"
    elif len(hello.incarnation) != INCARNATION_BYTES:
        problem = f"the incarnation has {len(hello.incarnation)} bytes, not {INCARNATION_BYTES}"
    elif hello.role == records_pb2.NODE_ROLE_BROKER and not (
        0 < len(hello.kafka_host) <= HOST_CHARACTERS_MAX and 0 < hello.kafka_port <= PORT_MAX
    ):
        problem = (
            f"broker {hello.node_id} must report the address for Kafka clients: a host of 1 to"
            f" {HOST_CHARACTERS_MAX} characters, and a port"
        )
    elif hello.listeners:
        problem = _listeners_problem(hello)
    if problem is not None:
        raise invalid(problem)


def _listeners_problem(hello: wire.Hello) -> str | None:
    """Return why the further listeners are invalid; None if they are valid."""
    if hello.role != records_pb2.NODE_ROLE_BROKER:
        return f"node {hello.node_id} is not a broker and must report no listeners"
    if len(hello.listeners) > LISTENERS_MAX:
        return (
            f"broker {hello.node_id} reports {len(hello.listeners)} listeners; the limit is {LISTENERS_MAX}"
        )
    for name, address in hello.listeners.items():
        if not 0 < len(name) <= LISTENER_NAME_CHARACTERS_MAX:
            shown = name[:LISTENER_NAME_CHARACTERS_MAX]
            return (
                f"broker {hello.node_id}: the listener name {shown!r} must have 1 to"
                f" {LISTENER_NAME_CHARACTERS_MAX} characters"
            )
        try:
            host, port = split_host_port(address)
        except ValueError as error:
            return f"broker {hello.node_id}: the address of listener {name} is invalid: {error}"
        if not (0 < len(host) <= HOST_CHARACTERS_MAX and 0 < port <= PORT_MAX):
            return (
                f"broker {hello.node_id}: the address of listener {name} must have a host of 1 to"
                f" {HOST_CHARACTERS_MAX} characters, and a port"
            )
    return None
