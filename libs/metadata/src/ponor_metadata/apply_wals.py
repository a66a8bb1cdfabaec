"""Rules of apply for write-ahead logs in the object store: opened by their owner, trimmed with its commits, recovered by another, closed.

Why each assert is there: docs/formats/object-wal.md and the rules it comes from. A log belongs to one node epoch; that epoch is over before
anybody else may touch the log, and the row stays until nothing that was acknowledged is left in it.
"""

from __future__ import annotations

from typing import Final

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeEpoch, NodeId, StreamId

from ponor_metadata.rows import NO_EPOCH, NO_NODE, NodeRole, StreamRow, WalKind, WalRow
from ponor_metadata.tables import STREAMS_OPEN_AT
from ponor_metadata.view import View, is_current

FIRST_TOKEN: Final = 0
"""Of a log that nobody was told to recover."""


def wal_opened(view: View, record: records.WalOpened) -> None:
    """Only the process of the node's present epoch opens one, under that epoch: so no two processes ever write into one log."""
    node_id, epoch = NodeId(record.node_id), NodeEpoch(record.wal_epoch)
    assert is_current(view, node_id, epoch), f"node {node_id} epoch {epoch} is stale: it opens no log"
    node = view.nodes.get(node_id)
    assert node is not None
    assert node.wal is WalKind.OBJECT, f"node {node_id} registered with a log of kind {node.wal.name}"
    assert (node_id, epoch) not in view.wals, f"log {node_id}/{epoch} is open"
    view.wals.put(WalRow(node_id, epoch, 0, NO_NODE, NO_EPOCH, FIRST_TOKEN))


def wal_trimmed(view: View, record: records.WalTrimmed) -> None:
    """The trim point only rises: slots below it may be deleted already."""
    row = _wal(view, record.node_id, record.wal_epoch)
    assert record.trim_sequence > row.trim_sequence, (
        f"log {row.node_id}/{row.wal_epoch}: the trim point {row.trim_sequence} would go back to {record.trim_sequence}"
    )
    view.wals.put(row._replace(trim_sequence=record.trim_sequence))


def wal_recovery_assigned(view: View, record: records.WalRecoveryAssigned) -> None:
    """The owner's epoch is over, for a log is never recovered beside a process that may still commit; the token tells assignments apart."""
    row = _wal(view, record.node_id, record.wal_epoch)
    name = f"log {row.node_id}/{row.wal_epoch}"
    recoverer_id, recoverer_epoch = NodeId(record.recoverer_id), NodeEpoch(record.recoverer_epoch)
    assert not is_current(view, row.node_id, row.wal_epoch), (
        f"{name}: its owner is neither fenced nor replaced"
    )
    assert is_current(view, recoverer_id, recoverer_epoch), (
        f"{name}: node {recoverer_id} epoch {recoverer_epoch} is stale"
    )
    recoverer = view.nodes.get(recoverer_id)
    assert recoverer is not None
    assert recoverer.role is NodeRole.BROKER, f"{name}: node {recoverer_id} is no broker"
    assert record.token == row.token + 1, f"{name}: token {record.token} does not follow {row.token}"
    view.wals.put(
        row._replace(recoverer_id=recoverer_id, recoverer_epoch=recoverer_epoch, token=record.token)
    )


def wal_closed(view: View, record: records.WalClosed) -> None:
    """Nothing refers to the log any more: a stream that is open under its epoch may have records in it."""
    row = _wal(view, record.node_id, record.wal_epoch)
    name = f"log {row.node_id}/{row.wal_epoch}"
    assert record.end_sequence >= row.trim_sequence, (
        f"{name}: ends at {record.end_sequence}, below its trim point {row.trim_sequence}"
    )
    left = open_stream_of(view, row.node_id, row.wal_epoch)
    assert left is None, f"{name}: stream {left} is still open"
    view.wals.delete((row.node_id, row.wal_epoch))


def open_stream_of(view: View, node_id: NodeId, node_epoch: NodeEpoch) -> StreamId | None:
    """A stream that is open at this epoch of the node; None when there is none."""
    return next(
        (row.stream_id for row in view.streams.find(STREAMS_OPEN_AT, node_id) if _is_of(row, node_epoch)),
        None,
    )


def _is_of(row: StreamRow, node_epoch: NodeEpoch) -> bool:
    return row.node_epoch == node_epoch


def _wal(view: View, node_id: int, wal_epoch: int) -> WalRow:
    row = view.wals.get((NodeId(node_id), NodeEpoch(wal_epoch)))
    assert row is not None, f"log {node_id}/{wal_epoch} is not open"
    return row
