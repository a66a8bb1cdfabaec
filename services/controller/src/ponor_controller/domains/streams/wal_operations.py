"""Operations on write-ahead logs in the object store (open, close), and the check of a node's epoch."""

from __future__ import annotations

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.wals import WALS, open_stream_of

from ponor_controller.kernel.decisions import Decision, Situation, invalid, refuse, require_role
from ponor_controller.shared_rules.stream_ownership import caller_wal_kind, find_wal, require_recoverer


def open_wal(_: wire.OpenWal, situation: Situation) -> Decision:
    """Permit the caller to write slots under its epoch, after the commit of this operation."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    caller = situation.caller
    if caller_wal_kind(situation) is not WalKind.OBJECT:
        raise invalid(
            f"node {caller.node_id} registered with its write-ahead log in a file; only a node that registers"
            " with a log in the object store can open one"
        )
    if (caller.node_id, caller.node_epoch) in situation.view[WALS]:
        return Decision()
    opened = records_pb2.WalOpened(node_id=caller.node_id, wal_epoch=caller.node_epoch)
    return Decision([records_pb2.Record(wal_opened=opened)])


def close_wal(body: wire.CloseWal, situation: Situation) -> Decision:
    """Close a log whose streams are all closed. A closed log has no row, and closing it again succeeds."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    row = find_wal(body.wal, situation)
    if row is None:
        return Decision()
    caller = situation.caller
    if (row.node_id, row.wal_epoch) != (caller.node_id, caller.node_epoch):
        require_recoverer(row, situation)
    left = open_stream_of(situation.view, row.node_id, row.wal_epoch)
    if left is not None:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_NOT_CLOSED,
            f"stream {left} is open at epoch {row.wal_epoch} of node {row.node_id}; close all streams of a"
            " write-ahead log before you close the log",
        )
    if body.end_sequence < row.trim_sequence:
        raise invalid(
            f"write-ahead log {row.node_id}/{row.wal_epoch} cannot end at slot {body.end_sequence}: it is"
            f" trimmed up to slot {row.trim_sequence}"
        )
    closed = records_pb2.WalClosed(
        node_id=row.node_id, wal_epoch=row.wal_epoch, end_sequence=body.end_sequence
    )
    return Decision([records_pb2.Record(wal_closed=closed)])


def verify_epoch(_: wire.VerifyEpoch, situation: Situation) -> Decision:
    """Confirm the caller's epoch: the executor checks it, and sends the answer after leadership is
    confirmed.
    """
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    return Decision()
