"""Nodes: registration, and what follows from it.

What lives here: how a process gets its epoch. A new incarnation fences the old one and raises the leader epoch of every partition the node leads, in
one batch; the same incarnation is the same process on a new connection.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.rows import NodeRow, PartitionRow
from ponor_metadata.tables import PARTITIONS_LED_BY
from ponor_metadata.view import View, cluster_of
from ponor_runtime.identity import NodeEpoch, NodeId, cluster_of_node

from ponor_controller.validation.situation import refuse

INCARNATION_BYTES = 16
FIRST_NODE_EPOCH = 1
NODE_ID_BOUND = 1 << 30
ROLES = (records_pb2.NODE_ROLE_BROKER, records_pb2.NODE_ROLE_COMPACTOR, records_pb2.NODE_ROLE_GC)


@dataclass(frozen=True, slots=True)
class Registration:
    """The epoch of a process, and the records that give it to it (none: it has it already)."""

    node_epoch: NodeEpoch
    records: list[records_pb2.Record]


def register_node(hello: wire.Hello, view: View, now_ms: int) -> Registration:
    """Decide on a Hello.

    Raises:
        OperationError: INVALID_REQUEST for a wrong cluster, id, role or address; NODE_FENCED or NODE_EPOCH_STALE for a process that lost its epoch and
            comes back.
    """
    _check_hello(hello, view)
    node_id = NodeId(hello.node_id)
    row = view.nodes.get(node_id)
    if row is not None and row.incarnation == hello.incarnation:
        if row.fenced:
            raise refuse(
                error_pb2.ERROR_CODE_NODE_FENCED,
                f"epoch {row.node_epoch} of node {node_id} was fenced; the process must stop",
            )
        return Registration(row.node_epoch, [])
    if hello.node_epoch:
        held = "is not known here" if row is None else f"is at epoch {row.node_epoch} of another process"
        raise refuse(
            error_pb2.ERROR_CODE_NODE_EPOCH_STALE,
            f"node {node_id} {held}; the process of epoch {hello.node_epoch} must stop",
        )
    if row is not None and int(row.role) != hello.role:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"node {node_id} is a {row.role.name}; give this process another node id",
        )
    node_epoch = NodeEpoch(FIRST_NODE_EPOCH if row is None else row.node_epoch + 1)
    records = _fence(row)
    records.append(_registered(hello, node_epoch, now_ms))
    for partition in view.partitions.find(PARTITIONS_LED_BY, node_id):
        records.append(raise_leader_epoch(partition))
    return Registration(node_epoch, records)


def raise_leader_epoch(partition: PartitionRow) -> records_pb2.Record:
    """The record by which the same leader begins a new leader epoch."""
    changed = records_pb2.PartitionChanged(
        topic_id=partition.topic_id,
        partition=partition.partition,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch + 1,
        replicas=partition.replicas,
    )
    return records_pb2.Record(partition_changed=changed)


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
    return records_pb2.Record(node_registered=registered)


def _check_hello(hello: wire.Hello, view: View) -> None:
    cluster = cluster_of(view)
    assert cluster is not None
    problem: str | None = None
    if hello.cluster_id and hello.cluster_id != cluster.cluster_id:
        problem = (
            f"this is cluster {cluster.cluster_id}, not {hello.cluster_id}; check the controller's address"
        )
    elif hello.role not in ROLES:
        problem = f"role {hello.role} is not known"
    elif (
        not 0 <= hello.node_id < NODE_ID_BOUND
        or cluster_of_node(NodeId(hello.node_id)) != cluster.cluster_ordinal
    ):
        problem = f"node id {hello.node_id} does not belong to cluster ordinal {cluster.cluster_ordinal}; ids are ordinal << 16 | n"
    elif len(hello.incarnation) != INCARNATION_BYTES:
        problem = f"an incarnation has {INCARNATION_BYTES} bytes, not {len(hello.incarnation)}"
    elif hello.role == records_pb2.NODE_ROLE_BROKER and not (
        hello.kafka_host and 0 < hello.kafka_port < 1 << 16
    ):
        problem = f"broker {hello.node_id} must say where Kafka clients reach it"
    if problem is not None:
        raise refuse(error_pb2.ERROR_CODE_INVALID_REQUEST, problem)
