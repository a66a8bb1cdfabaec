"""Operations for brokers that stop: begin or end a drain, leave the cluster."""

from __future__ import annotations

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OPEN_AT
from ponor_metadata.nouns.topics import PARTITIONS, PARTITIONS_LED_BY
from ponor_metadata.nouns.wals import WALS, WALS_OF
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId

from ponor_controller.kernel.decisions import Decision, Situation, refuse, require_role
from ponor_controller.kernel.operation import Caller
from ponor_controller.shared_rules.placement import candidates


def set_drain(body: wire.SetDrain, situation: Situation) -> Decision:
    """Begin or end the drain of the caller or of another broker. Idempotent."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    node = _require_broker(NodeId(body.node_id), situation)
    if node.draining == body.draining:
        return Decision()
    if body.draining:
        _require_place(node, situation)
    drains = records_pb2.NodeDrainSet(
        node_id=node.node_id, node_epoch=node.node_epoch, draining=body.draining
    )
    return Decision([records_pb2.Record(node_drain_set=drains)])


def leave_cluster(_: wire.LeaveCluster, situation: Situation) -> Decision:
    """Fence the caller, whose process is about to exit. It must lead no partition and hold no stream or log.

    In the batch, the record that fences the caller follows the result: a fenced node would get no answer. A
    caller that missed the answer and repeats the operation gets NODE_FENCED.
    """
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    caller = situation.caller
    _require_nothing_held(caller, situation.view)
    fenced = records_pb2.NodeFenced(node_id=caller.node_id, node_epoch=caller.node_epoch)
    return Decision(closing_records=[records_pb2.Record(node_fenced=fenced)])


def _require_nothing_held(caller: Caller, view: View) -> None:
    """Refuse a caller that leads partitions, or holds streams or write-ahead logs."""
    leads = len(view[PARTITIONS].find(PARTITIONS_LED_BY, caller.node_id))
    if leads:
        raise refuse(
            error_pb2.ERROR_CODE_MOVE_UNDER_WAY,
            f"broker {caller.node_id} leads {leads} partitions; drain it and wait until it leads none",
        )
    stream = next(iter(view[STREAMS].find(STREAMS_OPEN_AT, caller.node_id)), None)
    if stream is not None:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_NOT_CLOSED,
            f"broker {caller.node_id} holds stream {stream.stream_id} open at epoch {stream.stream_epoch};"
            " close its streams first",
        )
    wal = next((row for row in view[WALS].find(WALS_OF, caller.node_id)), None)
    if wal is not None:
        raise refuse(
            error_pb2.ERROR_CODE_WAL_NOT_HELD,
            f"the write-ahead log of epoch {wal.wal_epoch} of broker {caller.node_id} is open; close it, or"
            " let it be recovered first",
        )


def _require_broker(node_id: NodeId, situation: Situation) -> NodeRow:
    node = situation.view[NODES].get(node_id)
    if node is None or node.role is not NodeRole.BROKER or node.fenced:
        raise refuse(error_pb2.ERROR_CODE_NODE_NOT_FOUND, f"broker {node_id} is not registered, or is fenced")
    return node


def _require_place(node: NodeRow, situation: Situation) -> None:
    """Require that another broker can take the partitions. The last broker must stop without a drain."""
    if not situation.view[PARTITIONS].find(PARTITIONS_LED_BY, node.node_id):
        return
    if not candidates(situation.view, situation.is_suspected, without=(node.node_id,)):
        raise refuse(
            error_pb2.ERROR_CODE_NO_BROKER,
            f"broker {node.node_id} cannot drain: no other broker can take its partitions; start one first",
        )
