"""Write-ahead logs in the object store. The owner opens and trims a log; after a failure another broker
recovers and closes it.

A log belongs to one epoch of a node. Another node may write to it only after that epoch has ended. The row of
a log stays until every acknowledged record in it is committed (docs/formats/object-wal.md).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeEpoch, NodeId, StreamId

from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE, NODES, NodeRole, WalKind, is_current
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OPEN_AT
from ponor_metadata.tables.columns import INTEGERS, NATURALS
from ponor_metadata.tables.schema import FIRST_TWO_FIELDS, Index, Noun, Schema, Section, View

FIRST_TOKEN: Final = 0
"""The token of a log whose recovery was never assigned."""


class WalRow(NamedTuple):
    """A write-ahead log in the object store that is not closed. Slots from `trim_sequence` on may contain
    records that are not committed.

    The process with (node_id, wal_epoch) writes the log. After that epoch has ended, the recoverer commits
    the records and closes the log. `token` counts assignments; before the first the recoverer is `NO_NODE`,
    `NO_EPOCH`.
    """

    node_id: NodeId
    wal_epoch: NodeEpoch
    trim_sequence: int
    recoverer_id: NodeId
    recoverer_epoch: NodeEpoch
    token: int = 0


WALS_OF: Final[Index[NodeId, WalRow]] = Index(
    "of_node", lambda row: (row.node_id,), lambda row: row.wal_epoch
)
"""A node's open logs by epoch."""
WALS_RECOVERED_BY: Final[Index[NodeId, WalRow]] = Index(
    "recovered_by", lambda row: (row.recoverer_id,), lambda row: (row.node_id, row.wal_epoch)
)
"""Logs by recoverer (`NO_NODE`: no recoverer), in the order of owner and epoch."""
WALS: Final[Schema[tuple[NodeId, NodeEpoch], WalRow]] = Schema(
    "wals",
    WalRow,
    FIRST_TWO_FIELDS,
    (Section(18, (INTEGERS, INTEGERS, NATURALS, INTEGERS, INTEGERS, NATURALS)),),
    (WALS_OF, WALS_RECOVERED_BY),
)


def wal_opened(view: View, record: records.WalOpened) -> None:
    """Open a log under the node's present epoch.

    Only the process with that epoch may open it, so two processes never write to the same log.
    """
    node_id, epoch = NodeId(record.node_id), NodeEpoch(record.wal_epoch)
    assert is_current(view, node_id, epoch), f"node {node_id} epoch {epoch} is stale and may not open a log"
    node = view[NODES].get(node_id)
    assert node is not None
    assert node.wal is WalKind.OBJECT, (
        f"node {node_id} registered with a write-ahead log of kind {node.wal.name}, not OBJECT"
    )
    assert (node_id, epoch) not in view[WALS], f"log {node_id}/{epoch} is already open"
    view[WALS].put(WalRow(node_id, epoch, 0, NO_NODE, NO_EPOCH, FIRST_TOKEN))


def wal_trimmed(view: View, record: records.WalTrimmed) -> None:
    """Raise the trim point. It never falls, because slots below it may be deleted already."""
    row = _wal(view, record.node_id, record.wal_epoch)
    assert record.trim_sequence > row.trim_sequence, (
        f"log {row.node_id}/{row.wal_epoch}: the trim point {row.trim_sequence} may not go"
        f" back to {record.trim_sequence}"
    )
    view[WALS].put(row._replace(trim_sequence=record.trim_sequence))


def wal_recovery_assigned(view: View, record: records.WalRecoveryAssigned) -> None:
    """Assign a log to a recoverer. The owner's epoch must have ended; otherwise the owner could still
    commit.
    """
    row = _wal(view, record.node_id, record.wal_epoch)
    name = f"log {row.node_id}/{row.wal_epoch}"
    recoverer_id, recoverer_epoch = NodeId(record.recoverer_id), NodeEpoch(record.recoverer_epoch)
    assert not is_current(view, row.node_id, row.wal_epoch), (
        f"{name}: its owner is neither fenced nor replaced"
    )
    assert is_current(view, recoverer_id, recoverer_epoch), (
        f"{name}: node {recoverer_id} epoch {recoverer_epoch} is stale"
    )
    recoverer = view[NODES].get(recoverer_id)
    assert recoverer is not None
    assert recoverer.role is NodeRole.BROKER, f"{name}: node {recoverer_id} is not a broker"
    assert record.token == row.token + 1, f"{name}: token {record.token} does not follow {row.token}"
    view[WALS].put(
        row._replace(recoverer_id=recoverer_id, recoverer_epoch=recoverer_epoch, token=record.token)
    )


def wal_closed(view: View, record: records.WalClosed) -> None:
    """Close a log. No stream may be open at its epoch: the log may contain the stream's records."""
    row = _wal(view, record.node_id, record.wal_epoch)
    name = f"log {row.node_id}/{row.wal_epoch}"
    assert record.end_sequence >= row.trim_sequence, (
        f"{name}: ends at {record.end_sequence}, below its trim point {row.trim_sequence}"
    )
    left = open_stream_of(view, row.node_id, row.wal_epoch)
    assert left is None, f"{name}: stream {left} is still open"
    view[WALS].delete((row.node_id, row.wal_epoch))


def open_stream_of(view: View, node_id: NodeId, node_epoch: NodeEpoch) -> StreamId | None:
    """Return a stream that is open at this epoch of the node, or None."""
    for row in view[STREAMS].find(STREAMS_OPEN_AT, node_id):
        if row.node_epoch == node_epoch:
            return row.stream_id
    return None


def _wal(view: View, node_id: int, wal_epoch: int) -> WalRow:
    row = view[WALS].get((NodeId(node_id), NodeEpoch(wal_epoch)))
    assert row is not None, f"log {node_id}/{wal_epoch} is not open"
    return row


def _check(view: View) -> None:
    for wal in view[WALS]:
        name = f"log {wal.node_id}/{wal.wal_epoch}"
        owner = view[NODES].get(wal.node_id)
        assert owner is not None, f"{name}: its node is unknown"
        assert 0 < wal.wal_epoch <= owner.node_epoch, f"{name}: its epoch was never assigned"
        assert wal.trim_sequence >= 0, f"{name}: its trim point is negative"
        assigned = wal.recoverer_id != NO_NODE
        assert assigned == (wal.token > 0) == (wal.recoverer_epoch != NO_EPOCH), (
            f"{name}: recoverer, recoverer epoch and token are not all set or all empty"
        )
        alive = owner.node_epoch == wal.wal_epoch and not owner.fenced
        assert not (alive and assigned), f"{name}: has a recoverer while its owner is alive"
        assert not alive or owner.wal is WalKind.OBJECT, f"{name}: its node has a file WAL"
        recoverer = view[NODES].get(wal.recoverer_id)
        assert not assigned or recoverer is not None, f"{name}: its recoverer is unknown"
        assert recoverer is None or recoverer.node_epoch >= wal.recoverer_epoch, (
            f"{name}: the epoch of its recoverer was never assigned"
        )


NOUN: Final = Noun(
    schemas=(WALS,), rules=(wal_opened, wal_trimmed, wal_recovery_assigned, wal_closed), check=_check
)
