"""Nodes: registrations, dynamic settings of brokers, and stored results of operations."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from itertools import takewhile
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeEpoch, NodeId

from ponor_metadata.nouns.cluster import epoch_floor
from ponor_metadata.tables.columns import (
    BLOBS,
    BOOLEANS,
    INTEGERS,
    NATURALS,
    SETTINGS,
    TEXTS,
    Enums,
)
from ponor_metadata.tables.schema import (
    FIRST_FIELD,
    FIRST_TWO_FIELDS,
    Index,
    Noun,
    Schema,
    Section,
    View,
)

NO_NODE: Final = NodeId(-1)
NO_EPOCH: Final = NodeEpoch(-1)
ALL_BROKERS: Final = NodeId(-1)
"""The node id under which the settings of all brokers are stored."""
FIRST_NODE_EPOCH: Final = NodeEpoch(1)
NODE_ID_LIMIT: Final = 1 << 30
FLOOR_STEP_MAX: Final = 4_096
"""If the floor of stored results rises by at most this many ids, each id is looked up; otherwise all stored
results of the node are read. A session has fewer operations in flight than this."""


class NodeRole(IntEnum):
    """The role of a node; the same numbers as in ponor.metadata.v1.NodeRole."""

    NONE = 0
    """The role of an unregistered node. Its row stays, because epochs of a node id never start over."""
    BROKER = 1
    COMPACTOR = 2
    GC = 3


class WalKind(IntEnum):
    """Where a broker's write-ahead log is; numbers of ponor.metadata.v1.WalKind. 0 in a record means FILE."""

    FILE = 1
    OBJECT = 2


class NodeRow(NamedTuple):
    """The newest process that registered under a node id. It has the answers to all operations below
    `first_incomplete_id`.

    The partitions of a `draining` broker move to other brokers, and it gets no new ones. The drain ends when
    the broker registers again or is fenced.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    role: NodeRole
    incarnation: bytes
    kafka_host: str
    kafka_port: int
    registered_at_ms: int
    fenced: bool
    first_incomplete_id: int
    wal: WalKind = WalKind.FILE
    draining: bool = False


class BrokerConfigsRow(NamedTuple):
    """Dynamic settings of one broker, or of all brokers (`ALL_BROKERS`). A row has at least one setting."""

    node_id: NodeId
    configs: Mapping[str, str]


class BrokerListenersRow(NamedTuple):
    """Addresses, HOST:PORT by listener name, of a broker's listeners beside the one in its `NodeRow`. A row
    has at least one.
    """

    node_id: NodeId
    listeners: Mapping[str, str]


class OperationRow(NamedTuple):
    """The stored result of an operation of a node's present epoch.

    `result` is an encoded ponor.controller.v1.OperationResult.
    """

    node_id: NodeId
    request_id: int
    digest: bytes
    result: bytes
    commit_index: int


OPERATIONS_OF: Final[Index[NodeId, OperationRow]] = Index(
    "of_node", lambda row: (row.node_id,), lambda row: row.request_id
)
"""Stored results of a node, by request id."""

NODES: Final[Schema[NodeId, NodeRow]] = Schema(
    "nodes",
    NodeRow,
    FIRST_FIELD,
    (
        Section(
            5,
            (
                INTEGERS,
                INTEGERS,
                Enums(NodeRole),
                BLOBS,
                TEXTS,
                INTEGERS,
                INTEGERS,
                BOOLEANS,
                NATURALS,
                Enums(WalKind),
                BOOLEANS,
            ),
        ),
    ),
)
OPERATIONS: Final[Schema[tuple[NodeId, int], OperationRow]] = Schema(
    "operations",
    OperationRow,
    FIRST_TWO_FIELDS,
    (Section(14, (INTEGERS, NATURALS, BLOBS, BLOBS, NATURALS), weighed=(3,)),),
    (OPERATIONS_OF,),
)
BROKER_CONFIGS: Final[Schema[NodeId, BrokerConfigsRow]] = Schema(
    "broker_configs", BrokerConfigsRow, FIRST_FIELD, (Section(15, (INTEGERS, SETTINGS), weighed=(1,)),)
)
BROKER_LISTENERS: Final[Schema[NodeId, BrokerListenersRow]] = Schema(
    "broker_listeners", BrokerListenersRow, FIRST_FIELD, (Section(27, (INTEGERS, SETTINGS)),)
)


def is_current(view: View, node_id: NodeId, node_epoch: int) -> bool:
    """Return whether the process with this epoch is the newest under its node id, and not fenced."""
    node = view[NODES].get(node_id)
    return node is not None and node.node_epoch == node_epoch and not node.fenced


def next_node_epoch(view: View, present: NodeRow | None) -> NodeEpoch:
    """Return the epoch of the next process that registers under a node id; `present` is the id's row."""
    following = FIRST_NODE_EPOCH if present is None else present.node_epoch + 1
    return NodeEpoch(max(following, epoch_floor(view)))


def node_registered(view: View, record: records.NodeRegistered) -> None:
    """Give the node id to a newer process, and delete the results of the older one."""
    node_id = NodeId(record.node_id)
    present = view[NODES].get(node_id)
    before = NO_EPOCH if present is None else present.node_epoch
    assert 0 <= node_id < NODE_ID_LIMIT, f"node id {node_id} is not below 2^30"
    assert record.node_epoch > before, f"node {node_id}: epoch {record.node_epoch} is not above {before}"
    assert record.node_epoch >= epoch_floor(view), (
        f"node {node_id}: epoch {record.node_epoch} is of an earlier incarnation"
    )
    for operation in list(view[OPERATIONS].find(OPERATIONS_OF, node_id)):
        view[OPERATIONS].delete((node_id, operation.request_id))
    view[NODES].put(
        NodeRow(
            node_id=node_id,
            node_epoch=NodeEpoch(record.node_epoch),
            role=NodeRole(record.role),
            incarnation=record.incarnation,
            kafka_host=record.kafka_host,
            kafka_port=record.kafka_port,
            registered_at_ms=record.registered_at_ms,
            fenced=False,
            first_incomplete_id=0,
            wal=WalKind(record.wal or WalKind.FILE),
            draining=False,
        )
    )
    _replace_listeners(view, node_id, record.listeners)


def node_fenced(view: View, record: records.NodeFenced) -> None:
    """Fence the newest epoch of a node and end its drain. Older epochs have no rights already."""
    node = _node_at(view, record.node_id, record.node_epoch)
    view[NODES].put(node._replace(fenced=True, draining=False))


def node_unregistered(view: View, record: records.NodeUnregistered) -> None:
    """Remove the role of a fenced node.

    Its row and epoch stay: objects and streams refer to epochs of the node id, so epochs never start over.
    """
    node = _node_at(view, record.node_id, record.node_epoch)
    assert node.fenced, f"node {record.node_id} is not fenced"
    view[NODES].put(node._replace(role=NodeRole.NONE, kafka_host="", kafka_port=0, wal=WalKind.FILE))
    _replace_listeners(view, node.node_id, {})


def node_drain_set(view: View, record: records.NodeDrainSet) -> None:
    """Begin or end the drain of a broker that is not fenced."""
    node_id = NodeId(record.node_id)
    assert is_current(view, node_id, record.node_epoch), f"node {node_id} epoch {record.node_epoch} is stale"
    node = view[NODES].get(node_id)
    assert node is not None
    assert node.role is NodeRole.BROKER, f"node {node_id} is not a broker"
    view[NODES].put(node._replace(draining=record.draining))


def broker_configs_set(view: View, record: records.BrokerConfigsSet) -> None:
    """Replace all dynamic settings of a broker. A record without settings deletes the row."""
    node_id = NodeId(record.node_id)
    assert node_id == ALL_BROKERS or node_id in view[NODES], f"node {node_id} is unknown"
    if record.configs:
        view[BROKER_CONFIGS].put(BrokerConfigsRow(node_id, dict(record.configs)))
    else:
        assert node_id in view[BROKER_CONFIGS], f"node {node_id} has no dynamic settings to remove"
        view[BROKER_CONFIGS].delete(node_id)


def operation_completed(view: View, record: records.OperationCompleted) -> None:
    """Store the result of an operation until the node confirms that it received the answer."""
    node_id, request_id = NodeId(record.node_id), record.request_id
    node, operations = view[NODES].get(node_id), view[OPERATIONS]
    assert node is not None, f"node {node_id} is unknown"
    is_stale = node.node_epoch != record.node_epoch or node.fenced
    assert not is_stale, f"node {node_id} epoch {record.node_epoch} is stale"
    known_floor = node.first_incomplete_id
    floor = max(known_floor, record.first_incomplete_id)
    assert request_id >= floor, f"request {request_id} is below {floor}, the first request without an answer"
    assert (node_id, request_id) not in operations, f"request {request_id} already has a result"
    if floor > known_floor:
        view[NODES].put(node._replace(first_incomplete_id=floor))
        _forget_results(view, node_id, known_floor, floor)
    operations.put(OperationRow(node_id, request_id, record.digest, record.result, view.index))


def _forget_results(view: View, node_id: NodeId, known_floor: int, floor: int) -> None:
    """Delete a node's results below `floor`. Results below the former `known_floor` are already deleted."""
    operations = view[OPERATIONS]
    if floor - known_floor <= FLOOR_STEP_MAX:
        for below in range(known_floor, floor):
            try:  # noqa: SIM105 -- once per operation, and `suppress` costs more than everything else here
                operations.delete((node_id, below))
            except KeyError:
                pass  # refused operations have no result
        return
    kept = operations.find(OPERATIONS_OF, node_id)
    for below in [row.request_id for row in takewhile(lambda row: row.request_id < floor, kept)]:
        operations.delete((node_id, below))


def _replace_listeners(view: View, node_id: NodeId, listeners: Mapping[str, str]) -> None:
    """Store the addresses that a process registered in place of those of the process before it."""
    if listeners:
        view[BROKER_LISTENERS].put(BrokerListenersRow(node_id, dict(listeners)))
    elif node_id in view[BROKER_LISTENERS]:
        view[BROKER_LISTENERS].delete(node_id)


def _node_at(view: View, node_id: int, node_epoch: int) -> NodeRow:
    """Return the node's row, which must be at this epoch."""
    node = view[NODES].get(NodeId(node_id))
    assert node is not None, f"node {node_id} is unknown"
    assert node.node_epoch == node_epoch, f"node {node_id} is at epoch {node.node_epoch}"
    return node


def _check(view: View) -> None:
    for node in view[NODES]:
        assert 0 <= node.node_id < 1 << 30, f"node id {node.node_id} is not within 0..2^30-1"
        assert not node.draining or (node.role is NodeRole.BROKER and not node.fenced), (
            f"node {node.node_id}: drains, but is fenced or not a broker"
        )
        assert node.role is not NodeRole.NONE or node.fenced, (
            f"node {node.node_id}: unregistered, but has rights"
        )
    for operation in view[OPERATIONS]:
        owner = view[NODES].get(operation.node_id)
        assert owner is not None, f"operation {operation.request_id}: node {operation.node_id} is unknown"
        assert operation.request_id >= owner.first_incomplete_id, (
            f"operation {operation.request_id}: its result is below the first request without an answer"
        )
        assert operation.commit_index <= view.index, (
            f"operation {operation.request_id}: its commit index is above the index of the image"
        )
    for row in view[BROKER_CONFIGS]:
        assert row.node_id == ALL_BROKERS or row.node_id in view[NODES], (
            f"settings of an unknown broker {row.node_id}"
        )
        assert row.configs, f"broker {row.node_id}: a row without a setting"
    for addresses in view[BROKER_LISTENERS]:
        broker = view[NODES].get(addresses.node_id)
        assert broker is not None, f"listeners of an unknown node {addresses.node_id}"
        assert broker.role is NodeRole.BROKER, f"node {addresses.node_id} has listeners, but is not a broker"
        assert addresses.listeners, f"broker {addresses.node_id}: a row without a listener"


NOUN: Final = Noun(
    schemas=(NODES, OPERATIONS, BROKER_CONFIGS, BROKER_LISTENERS),
    rules=(
        node_registered,
        node_fenced,
        node_unregistered,
        node_drain_set,
        broker_configs_set,
        operation_completed,
    ),
    check=_check,
)
