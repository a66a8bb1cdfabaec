"""Write-ahead logs in the object store: open, close, trim, and who may act on what went through one.

What lives here: whose streams an operation speaks of. A node acts for the log of its own epoch, or for one that it was told to recover; the streams of a log are
those that are open at the node epoch which wrote it. As long as the row of a log is there, nobody else commits or closes them, so that nothing which was acknowledged is
cut off at the committed end. A log in a file has no row: there the node's next process acts for the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.nodes import NODES, WalKind
from ponor_metadata.nouns.streams import StreamRow
from ponor_metadata.nouns.wals import WALS, WalRow, open_stream_of
from ponor_runtime.identity import NodeEpoch, NodeId

from ponor_controller.kernel.decisions import Decision, Situation, refuse, require_role


@dataclass(frozen=True, slots=True)
class Writer:
    """Whose write-ahead log data went through.

    `node_epoch` is None for a log in a file, which serves all epochs of its node; `wal` is the row of a log in the store.
    """

    node_id: NodeId
    node_epoch: NodeEpoch | None
    wal: WalRow | None

    def holds(self, row: StreamRow) -> bool:
        """Whether the stream is, or was last, open at this writer."""
        return row.node_id == self.node_id and self.node_epoch in (None, row.node_epoch)

    def __str__(self) -> str:
        return (
            f"node {self.node_id}"
            if self.node_epoch is None
            else f"node {self.node_id} epoch {self.node_epoch}"
        )


def open_wal(_: wire.OpenWal, situation: Situation) -> Decision:
    """The caller may put slots under its epoch from now on; until this is committed it must not."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    caller = situation.caller
    if _kind(situation) is not WalKind.OBJECT:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"node {caller.node_id} registered with its write-ahead log in a file; register it with one in the object store",
        )
    if (caller.node_id, caller.node_epoch) in situation.view[WALS]:
        return Decision()
    opened = records_pb2.WalOpened(node_id=caller.node_id, wal_epoch=caller.node_epoch)
    return Decision([records_pb2.Record(wal_opened=opened)])


def close_wal(body: wire.CloseWal, situation: Situation) -> Decision:
    """Nothing that was acknowledged is left in the log. One that is closed already has no row, and closing it again is a success."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    row = _row(body.wal, situation)
    if row is None:
        return Decision()
    caller = situation.caller
    if (row.node_id, row.wal_epoch) != (caller.node_id, caller.node_epoch):
        _require_recoverer(row, situation)
    left = open_stream_of(situation.view, row.node_id, row.wal_epoch)
    if left is not None:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_NOT_CLOSED,
            f"stream {left} is open at epoch {row.wal_epoch} of node {row.node_id}; close the streams of a log before the log",
        )
    if body.end_sequence < row.trim_sequence:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"the log {row.node_id}/{row.wal_epoch} cannot end at slot {body.end_sequence}: it is trimmed up to {row.trim_sequence}",
        )
    closed = records_pb2.WalClosed(
        node_id=row.node_id, wal_epoch=row.wal_epoch, end_sequence=body.end_sequence
    )
    return Decision([records_pb2.Record(wal_closed=closed)])


def verify_epoch(_: wire.VerifyEpoch, situation: Situation) -> Decision:
    """Nothing to decide: that the caller's epoch holds was found before, and an answer without records waits until the leadership is confirmed."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    return Decision()


def writer(situation: Situation, recovered: wire.WalName | None = None) -> Writer:
    """For whom the caller acts: itself, or the writer of a log that it recovers.

    Raises:
        OperationError: WAL_NOT_HELD; the log is not open, or not the caller's to recover.
    """
    caller = situation.caller
    if recovered is not None:
        row = _row(recovered, situation)
        if row is None:
            raise refuse(
                error_pb2.ERROR_CODE_WAL_NOT_HELD,
                f"the log {recovered.node_id}/{recovered.wal_epoch} is closed; its recovery is over",
            )
        _require_recoverer(row, situation)
        return Writer(row.node_id, row.wal_epoch, row)
    if _kind(situation) is WalKind.FILE:
        return Writer(caller.node_id, None, None)
    own = situation.view[WALS].get((caller.node_id, caller.node_epoch))
    if own is None:
        raise refuse(
            error_pb2.ERROR_CODE_WAL_NOT_HELD,
            f"the log {caller.node_id}/{caller.node_epoch} is not open; open it before the first stream",
        )
    return Writer(caller.node_id, caller.node_epoch, own)


def trims(acting: Writer, trim_sequence: int) -> list[records_pb2.Record]:
    """The record that moves a log's trim point; none when it is there already, or further.

    Raises:
        OperationError: INVALID_REQUEST; the log is a file.
    """
    if not trim_sequence:
        return []
    if acting.wal is None:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"{acting} has its write-ahead log in a file, which is not trimmed here",
        )
    if trim_sequence <= acting.wal.trim_sequence:
        return []
    trimmed = records_pb2.WalTrimmed(
        node_id=acting.wal.node_id, wal_epoch=acting.wal.wal_epoch, trim_sequence=trim_sequence
    )
    return [records_pb2.Record(wal_trimmed=trimmed)]


def _kind(situation: Situation) -> WalKind:
    node = situation.view[NODES].get(situation.caller.node_id)
    assert node is not None, "sessions begin after registration"
    return node.wal


def _row(name: wire.WalName, situation: Situation) -> WalRow | None:
    return situation.view[WALS].get((NodeId(name.node_id), NodeEpoch(name.wal_epoch)))


def _require_recoverer(row: WalRow, situation: Situation) -> None:
    caller = situation.caller
    if (row.recoverer_id, row.recoverer_epoch) != (caller.node_id, caller.node_epoch):
        whose = f"node {row.recoverer_id} epoch {row.recoverer_epoch}" if row.token else "nobody yet"
        raise refuse(
            error_pb2.ERROR_CODE_WAL_NOT_HELD,
            f"the log {row.node_id}/{row.wal_epoch} is to be recovered by {whose}, not by node {caller.node_id} epoch {caller.node_epoch}",
        )
