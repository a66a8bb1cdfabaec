"""Ownership of streams: which writer holds a stream open, and for which writer a caller acts.

A node acts as the writer of the log of its own epoch, or of a log whose recovery is assigned to it. The
streams of a log are the streams that are open at the node epoch that wrote the log. While a log has a row, no
other node may commit to these streams or close them, so no stream is closed at an end offset that excludes
acknowledged records. A log in a file has no row: the node's next process acts as its writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.nodes import NODES, WalKind
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_TOPIC, StreamRow
from ponor_metadata.nouns.topics import DELETIONS, parse_topic_id
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeEpoch, NodeId, StreamId

from ponor_controller.kernel.decisions import Situation, invalid, refuse


@dataclass(frozen=True, slots=True)
class Writer:
    """The owner of a write-ahead log.

    `node_epoch` is None for a log in a file, because all processes of its node use the same file. `wal` is
    the row of a log in the store; None for a file.
    """

    node_id: NodeId
    node_epoch: NodeEpoch | None
    wal: WalRow | None

    def holds(self, row: StreamRow) -> bool:
        """Whether this writer has the stream open, or had it open last."""
        return row.node_id == self.node_id and self.node_epoch in (None, row.node_epoch)

    def __str__(self) -> str:
        return (
            f"node {self.node_id}"
            if self.node_epoch is None
            else f"node {self.node_id} epoch {self.node_epoch}"
        )


def writer(situation: Situation, recovered: wire.WalName | None = None) -> Writer:
    """The writer for which the caller acts: itself, or the owner of a log that the caller recovers.

    Raises:
        OperationError: WAL_NOT_HELD if the log is not open, or if its recovery is not assigned to the caller.
    """
    caller = situation.caller
    if recovered is not None:
        row = find_wal(recovered, situation)
        if row is None:
            raise refuse(
                error_pb2.ERROR_CODE_WAL_NOT_HELD,
                f"write-ahead log {recovered.node_id}/{recovered.wal_epoch} is closed; its recovery ended",
            )
        require_recoverer(row, situation)
        return Writer(row.node_id, row.wal_epoch, row)
    if caller_wal_kind(situation) is WalKind.FILE:
        return Writer(caller.node_id, None, None)
    own = situation.view[WALS].get((caller.node_id, caller.node_epoch))
    if own is None:
        raise refuse(
            error_pb2.ERROR_CODE_WAL_NOT_HELD,
            f"write-ahead log {caller.node_id}/{caller.node_epoch} is not open; open it before any stream",
        )
    return Writer(caller.node_id, caller.node_epoch, own)


def require_owner(row: StreamRow, stream_epoch: int, acting: Writer) -> None:
    """Require that the writer holds the stream open at exactly this epoch.

    Raises:
        OperationError: STREAM_FENCED or STREAM_NOT_OPENED.
    """
    if row.stream_epoch != stream_epoch or (row.open and not acting.holds(row)):
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_FENCED,
            f"stream {row.stream_id} is at epoch {row.stream_epoch} of node {row.node_id} epoch"
            f" {row.node_epoch}, not at epoch {stream_epoch} of {acting}; stop using it",
        )
    if not row.open:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_NOT_OPENED,
            f"stream {row.stream_id} is closed at epoch {row.stream_epoch}; open it first",
        )


def require_stream(situation: Situation, stream_id: int) -> StreamRow:
    """The stream's row.

    Raises:
        OperationError: STREAM_NOT_FOUND.
    """
    row = find_stream(situation.view, stream_id)
    if row is None:
        raise refuse(
            error_pb2.ERROR_CODE_STREAM_NOT_FOUND,
            f"stream {stream_id} does not exist; it was deleted or never created",
        )
    return row


def find_stream(view: View, stream_id: int) -> StreamRow | None:
    """The stream's row; None if there is none, or if its topic is being deleted."""
    row = view[STREAMS].get(StreamId(stream_id))
    if row is None or not len(view[DELETIONS]):
        return row
    return None if any(_is_deleted(view, named) for named in STREAMS_OF_TOPIC.keys(row)) else row


def stream_finder(view: View) -> Callable[[int], StreamRow | None]:
    """Return `find_stream` for an operation on many streams. Checks for topics being deleted only once."""
    return partial(find_stream, view) if len(view[DELETIONS]) else view[STREAMS].get  # type: ignore[return-value]  # ids are ints


def trim_records(acting: Writer, trim_sequence: int) -> list[records_pb2.Record]:
    """The record that advances a log's trim point; none if it is already at `trim_sequence` or higher.

    Raises:
        OperationError: INVALID_REQUEST if the log is a file.
    """
    if not trim_sequence:
        return []
    if acting.wal is None:
        raise invalid(
            f"{acting} has its write-ahead log in a file; trim_sequence is only for logs in the object store"
        )
    if trim_sequence <= acting.wal.trim_sequence:
        return []
    trimmed = records_pb2.WalTrimmed(
        node_id=acting.wal.node_id, wal_epoch=acting.wal.wal_epoch, trim_sequence=trim_sequence
    )
    return [records_pb2.Record(wal_trimmed=trimmed)]


def caller_wal_kind(situation: Situation) -> WalKind:
    """Whether the caller's write-ahead log is a file or in the store."""
    node = situation.view[NODES].get(situation.caller.node_id)
    assert node is not None, "the node of a session is not registered"
    return node.wal


def find_wal(name: wire.WalName, situation: Situation) -> WalRow | None:
    """The row of a log in the store; None if it is closed or was never open."""
    return situation.view[WALS].get((NodeId(name.node_id), NodeEpoch(name.wal_epoch)))


def require_recoverer(row: WalRow, situation: Situation) -> None:
    """Require that the recovery of the log is assigned to the caller.

    Raises:
        OperationError: WAL_NOT_HELD.
    """
    caller = situation.caller
    if (row.recoverer_id, row.recoverer_epoch) != (caller.node_id, caller.node_epoch):
        whose = f"node {row.recoverer_id} epoch {row.recoverer_epoch}" if row.token else "no node yet"
        raise refuse(
            error_pb2.ERROR_CODE_WAL_NOT_HELD,
            f"the recovery of write-ahead log {row.node_id}/{row.wal_epoch} is assigned to {whose}, not to"
            f" node {caller.node_id} epoch {caller.node_epoch}",
        )


def _is_deleted(view: View, named: str) -> bool:
    topic_id = parse_topic_id(named)
    return topic_id is not None and topic_id in view[DELETIONS]
