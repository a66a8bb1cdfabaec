"""Describe the registered nodes, and unregister a node that will not return."""

from __future__ import annotations

from typing import Protocol

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import cluster_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OPEN_AT
from ponor_metadata.nouns.topics import MOVES, MOVES_FROM, MOVES_TO, PARTITIONS, PARTITIONS_LED_BY
from ponor_metadata.nouns.wals import WALS, WALS_OF, WALS_RECOVERED_BY
from ponor_metadata.tables.schema import View
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId


class NodeContact(Protocol):
    """When the leader last heard each node. Valid only while this controller leads."""

    def is_away(self, node_id: NodeId) -> bool:
        """Whether the node's session broke and the node has no other session."""
        ...

    def is_suspected(self, node_id: NodeId) -> bool:
        """Whether the node is suspected."""
        ...

    def heard_ms_ago(self, node_id: NodeId) -> int | None:
        """How long ago the node was heard; None if not in this term."""
        ...


def describe_nodes(view: View, contact: NodeContact) -> wire.NodesDescription:
    """All nodes with a role, by node id."""
    rows = sorted((row for row in view[NODES] if row.role is not NodeRole.NONE), key=lambda row: row.node_id)
    return wire.NodesDescription(nodes=[_describe(row, contact) for row in rows])


def unregister_node(node_id: NodeId, view: View, contact: NodeContact) -> list[records_pb2.Record]:
    """The records that fence a node and remove its role; none if it has no role.

    Raises:
        OperationError: NODE_NOT_FOUND; INVALID_REQUEST for a node that is live or still holds something.
    """
    row = view[NODES].get(node_id)
    if row is None:
        raise OperationError(
            error_pb2.ERROR_CODE_NODE_NOT_FOUND,
            f"node {node_id} never registered; `ponor cluster info` lists the nodes",
        )
    if row.role is NodeRole.NONE:
        return []
    if not row.fenced and not contact.is_suspected(node_id):
        raise OperationError(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"{row.role.name.lower()} {node_id} is alive, or stopped a moment ago: stop it and wait for the"
            " session timeout",
        )
    held = _held(row, view)
    if held:
        raise OperationError(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"{row.role.name.lower()} {node_id} still has {held}: start it again and let it drain, wait for"
            f" the failover, or use `ponor broker recover {node_id}`",
        )
    unregistered = records_pb2.NodeUnregistered(node_id=node_id, node_epoch=row.node_epoch)
    fenced = records_pb2.NodeFenced(node_id=node_id, node_epoch=row.node_epoch)
    return [
        *([] if row.fenced else [records_pb2.Record(node_fenced=fenced)]),
        records_pb2.Record(node_unregistered=unregistered),
    ]


def _describe(row: NodeRow, contact: NodeContact) -> wire.NodeDescription:
    heard_ms_ago = contact.heard_ms_ago(row.node_id)
    return wire.NodeDescription(
        node_id=row.node_id,
        role=records_pb2.NodeRole.ValueType(row.role),
        node_epoch=row.node_epoch,
        fenced=row.fenced,
        connected=heard_ms_ago is not None and not row.fenced and not contact.is_away(row.node_id),
        heard_ms_ago=-1 if heard_ms_ago is None else heard_ms_ago,
        suspected=not row.fenced and contact.is_suspected(row.node_id),
        draining=row.draining,
    )


def _held(row: NodeRow, view: View) -> str:
    counts = {
        "partitions": len(view[PARTITIONS].find(PARTITIONS_LED_BY, row.node_id)),
        "open streams": len(view[STREAMS].find(STREAMS_OPEN_AT, row.node_id)),
        "write-ahead logs": len(view[WALS].find(WALS_OF, row.node_id)),
        "write-ahead logs to recover": len(view[WALS].find(WALS_RECOVERED_BY, row.node_id)),
        "moves": len(view[MOVES].find(MOVES_FROM, row.node_id))
        + len(view[MOVES].find(MOVES_TO, row.node_id)),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)
