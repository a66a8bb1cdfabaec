"""Strict in-memory model of the controller that implements the three ports of s3stream.

Only for tests of s3stream. The model outlives the processes of its nodes; each process calls
`register` at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamEpoch, StreamId
from s3stream.errors import (
    CommitRefusedError,
    PreparedExpiredError,
    StorageFailedError,
    StreamFencedError,
    StreamNotClosedError,
    StreamNotFoundError,
    WalNotHeldError,
)
from s3stream.ports import (
    PIECES_MAX,
    ObjectPiece,
    OpenWal,
    PreparedObjects,
    StreamRange,
    StreamState,
    UploadedObject,
    WalName,
)
from s3stream.settings import PREPARED_IDS_MAX

NAMESPACE = "model"
NODE = NodeId(1)
"""Id of the only node, in tests with a single node."""


@dataclass
class StreamRow:
    epoch: int = -1
    start_offset: int = 0
    end_offset: int = 0
    open: bool = False
    owner: tuple[NodeId, int] = (NodeId(-1), -1)
    """Node and epoch of the process that opened the stream last."""
    pieces: list[ObjectPiece] = field(default_factory=list)


@dataclass
class CommitRow:
    stream_set_object: UploadedObject | None
    stream_objects: tuple[UploadedObject, ...]
    trim_sequence: int = 0
    recovered: WalName | None = None


@dataclass
class WalRow:
    trim_sequence: int = 0
    recoverer: tuple[NodeId, int] | None = None


class ClusterModel:
    """State of the cluster, and the log of its commits."""

    def __init__(self, clock: Clock, *, prepared_ttl_ms: int = 3_600_000) -> None:
        self.clock = clock
        self.prepared_ttl_ns = prepared_ttl_ms * 1_000_000
        self.node_epochs: dict[NodeId, int] = {}
        self._newest_epoch = 0
        self.streams: dict[StreamId, StreamRow] = {}
        self.wals: dict[WalName, WalRow] = {}
        self.closed_wals: dict[WalName, int] = {}
        """End sequences of closed logs."""
        self.prepared: dict[ObjectId, int] = {}
        self.committed: dict[ObjectId, UploadedObject] = {}
        self.commits: list[CommitRow] = []
        self.hidden_streams: set[StreamId] = set()
        """Streams that the node's image does not contain yet."""
        self.incarnation_unconfirmed = False
        """Whether a forced recovery of the controllers waits for confirmation."""
        self.on_step: Callable[[str], None] = lambda _: None
        """Called before and after each change, for example with "commit:before". May raise to
        simulate a crash."""
        self._next_stream = 1
        self._next_object = 1

    @property
    def node_epoch(self) -> int:
        """Trim point of the only node, in tests with a single node."""
        return self.node_epochs.get(NODE, 0)

    @node_epoch.setter
    def node_epoch(self, epoch: int) -> None:
        self.node_epochs[NODE] = self._newest_epoch = epoch

    def register(self, node_id: NodeId = NODE) -> ClusterNode:
        """Register a new process of the node, which fences the older ones."""
        self.fence(node_id)
        return ClusterNode(self, self.node_epochs[node_id], node_id)

    def fence(self, node_id: NodeId) -> None:
        """Refuse all further changes by processes of the node."""
        self._newest_epoch += 1
        self.node_epochs[node_id] = self._newest_epoch

    def assign_wals(self, node_id: NodeId, recoverer: ClusterNode) -> list[OpenWal]:
        """Assign every open log of a node's older epochs to a process; return the logs with their
        current trim points.
        """
        assigned: list[OpenWal] = []
        for name, row in self.wals.items():
            if name.node_id == node_id and name.epoch < self.node_epochs[node_id]:
                row.recoverer = (recoverer.node_id, recoverer.epoch)
                assigned.append(OpenWal(name, row.trim_sequence))
        return assigned

    def new_stream(self) -> StreamId:
        stream_id = StreamId(self._next_stream)
        self._next_stream += 1
        self.streams[stream_id] = StreamRow()
        return stream_id

    def new_objects(self, count: int) -> ObjectId:
        first = ObjectId(self._next_object)
        self._next_object += count
        expires_ns = self.clock.monotonic_ns() + self.prepared_ttl_ns
        for number in range(first, first + count):
            self.prepared[ObjectId(number)] = expires_ns
        return first


class ClusterNode:
    """The three ports, for one process of a node."""

    def __init__(self, cluster: ClusterModel, epoch: int, node_id: NodeId = NODE) -> None:
        self.cluster = cluster
        self.epoch = epoch
        self.node_id = node_id

    # --- streams

    async def create_streams(self, tags: Sequence[Mapping[str, str]]) -> list[StreamId]:
        self._check_node()
        assert len(tags) <= 1000
        return [self.cluster.new_stream() for _ in tags]

    async def open_streams(self, streams: Sequence[tuple[StreamId, StreamEpoch]]) -> list[StreamState]:
        self._step("open:before")
        assert len(streams) <= 1000
        for stream_id, epoch in streams:
            row = self.cluster.streams.get(stream_id)
            if row is None:
                raise StreamNotFoundError(f"stream {stream_id}")
            if row.epoch >= epoch and not (row.open and row.epoch == epoch):
                raise StreamFencedError(f"stream {stream_id} is at epoch {row.epoch}")
            if row.open and row.epoch < epoch:
                raise StreamNotClosedError(f"stream {stream_id} is open at epoch {row.epoch}")
        for stream_id, epoch in streams:
            row = self.cluster.streams[stream_id]
            row.open, row.epoch, row.owner = True, epoch, (self.node_id, self.epoch)
        self._step("open:after")
        return [self._state(stream_id) for stream_id, _ in streams]

    async def close_streams(
        self, streams: Sequence[StreamState], *, recovered: WalName | None = None
    ) -> None:
        self._step("close:before")
        assert len(streams) <= 1000
        if recovered is not None:
            self._check_recovers(recovered)
        for state in streams:
            row = self._owned(state.stream_id, state.epoch)
            assert row.end_offset == state.end_offset, f"{state} closed at another end than {row.end_offset}"
        for state in streams:
            self.cluster.streams[state.stream_id].open = False
        self._step("close:after")

    async def trim_streams(self, streams: Sequence[tuple[StreamId, StreamEpoch, int]]) -> None:
        self._check_node()
        for stream_id, epoch, start_offset in streams:
            row = self._owned(stream_id, epoch)
            assert start_offset <= row.end_offset, "trimmed beyond the committed end"
            row.start_offset = max(row.start_offset, start_offset)

    async def delete_streams(self, stream_ids: Sequence[StreamId]) -> None:
        self._check_node()
        for stream_id in stream_ids:
            self.cluster.streams.pop(stream_id, None)

    def owned_streams(self) -> list[StreamState]:
        return [
            self._state(stream_id)
            for stream_id, row in self.cluster.streams.items()
            if row.open and row.owner[0] == self.node_id
        ]

    def exists(self, stream_id: StreamId) -> bool:
        return stream_id in self.cluster.streams and stream_id not in self.cluster.hidden_streams

    # --- objects

    async def prepare_objects(self, count: int) -> PreparedObjects:
        self._step("prepare:before")
        assert 1 <= count <= PREPARED_IDS_MAX
        first = self.cluster.new_objects(count)
        self._step("prepare:after")
        return PreparedObjects(first, count, NAMESPACE, 0)

    async def commit_upload(
        self,
        stream_set_object: UploadedObject | None,
        stream_objects: Sequence[UploadedObject],
        *,
        trim_sequence: int = 0,
        recovered: WalName | None = None,
    ) -> None:
        self._step("commit:before")
        objects = [*([] if stream_set_object is None else [stream_set_object]), *stream_objects]
        assert objects or trim_sequence, "an empty commit"
        if recovered is not None:
            self._check_recovers(recovered)
        for uploaded in objects:
            if uploaded.object_id not in self.cluster.prepared:
                raise CommitRefusedError(f"object {uploaded.object_id} is not prepared")
            if self.cluster.prepared[uploaded.object_id] <= self.cluster.clock.monotonic_ns():
                raise PreparedExpiredError(f"object {uploaded.object_id}")
        assert all(len(uploaded.ranges) == 1 for uploaded in stream_objects)
        ranges = [(part, uploaded) for uploaded in objects for part in uploaded.ranges]
        if stream_set_object is not None:
            keys = [(part.stream_id, part.start_offset) for part in stream_set_object.ranges]
            assert keys == sorted(keys)
        owner = (self.node_id, self.epoch) if recovered is None else (recovered.node_id, recovered.epoch)
        for part, _ in ranges:
            self._check_range(part, owner)
        for part, uploaded in ranges:
            self._apply(part, uploaded)
        for uploaded in objects:
            del self.cluster.prepared[uploaded.object_id]
            self.cluster.committed[uploaded.object_id] = uploaded
        if trim_sequence:
            self._trim_wal(recovered or self._own_wal(), trim_sequence)
        self.cluster.commits.append(
            CommitRow(stream_set_object, tuple(stream_objects), trim_sequence, recovered)
        )
        self._step("commit:after")

    async def find_objects(
        self, stream_id: StreamId, start_offset: int, end_offset: int, *, pieces_max: int = PIECES_MAX
    ) -> list[ObjectPiece]:
        pieces = self.cluster.streams[stream_id].pieces
        return [
            piece for piece in pieces if piece.end_offset > start_offset and piece.start_offset < end_offset
        ][:pieces_max]

    # --- logs in the object store

    async def open_wal(self) -> WalName:
        if self.epoch != self.cluster.node_epochs[self.node_id]:
            raise StorageFailedError(f"node epoch {self.epoch} is over")
        name = self._own_wal()
        assert name not in self.cluster.closed_wals
        self.cluster.wals.setdefault(name, WalRow())
        return name

    async def close_wal(self, name: WalName, end_sequence: int) -> None:
        self.cluster.on_step("close_wal:before")
        if self.epoch != self.cluster.node_epochs[self.node_id]:
            raise StorageFailedError(f"node epoch {self.epoch} is over")
        if name in self.cluster.closed_wals:
            return
        if name != self._own_wal():
            self._check_recovers(name)
        assert not self.streams_of(name), "streams of a log that is closed"
        del self.cluster.wals[name]
        self.cluster.closed_wals[name] = end_sequence
        self.cluster.on_step("close_wal:after")

    async def verify_epoch(self) -> None:
        self.cluster.on_step("verify")
        if self.epoch != self.cluster.node_epochs[self.node_id]:
            raise StreamFencedError(f"node epoch {self.epoch} is over")

    def streams_of(self, name: WalName) -> list[StreamState]:
        return [
            self._state(stream_id)
            for stream_id, row in self.cluster.streams.items()
            if row.open and row.owner == (name.node_id, name.epoch)
        ]

    def may_delete_recovered(self) -> bool:
        return not self.cluster.incarnation_unconfirmed

    def _own_wal(self) -> WalName:
        return WalName(NAMESPACE, self.node_id, NodeEpoch(self.epoch))

    def _check_recovers(self, name: WalName) -> None:
        row = self.cluster.wals.get(name)
        if row is None or row.recoverer != (self.node_id, self.epoch):
            raise WalNotHeldError(f"{name} is not recovered by node {self.node_id} at epoch {self.epoch}")

    def _trim_wal(self, name: WalName, trim_sequence: int) -> None:
        row = self.cluster.wals[name]
        row.trim_sequence = max(row.trim_sequence, trim_sequence)

    # --- rules

    def _check_range(self, part: StreamRange, owner: tuple[NodeId, int]) -> None:
        assert part.start_offset < part.end_offset
        row = self.cluster.streams.get(part.stream_id)
        if row is None:
            return  # ranges of deleted streams are ignored
        if not row.open or row.epoch != part.epoch or row.end_offset != part.start_offset:
            raise CommitRefusedError(f"{part} does not continue {row}")
        if row.owner[0] != owner[0]:
            raise CommitRefusedError(f"{part} is of a stream of {row.owner}, not of {owner}")

    def _apply(self, part: StreamRange, uploaded: UploadedObject) -> None:
        row = self.cluster.streams.get(part.stream_id)
        if row is not None:
            row.end_offset = part.end_offset
            row.pieces.append(
                ObjectPiece(
                    uploaded.object_id, NAMESPACE, 0, uploaded.size_bytes, part.start_offset, part.end_offset
                )
            )

    def _owned(self, stream_id: StreamId, epoch: StreamEpoch) -> StreamRow:
        row = self.cluster.streams.get(stream_id)
        if row is None:
            raise StreamNotFoundError(f"stream {stream_id}")
        if row.epoch != epoch or not row.open:
            raise StreamFencedError(f"stream {stream_id} is {row}")
        return row

    def _state(self, stream_id: StreamId) -> StreamState:
        row = self.cluster.streams[stream_id]
        return StreamState(stream_id, StreamEpoch(row.epoch), row.start_offset, row.end_offset)

    def _step(self, name: str) -> None:
        self._check_node()
        self.cluster.on_step(name)

    def _check_node(self) -> None:
        if self.epoch != self.cluster.node_epochs[self.node_id]:
            raise CommitRefusedError(
                f"node epoch {self.epoch} is fenced by {self.cluster.node_epochs[self.node_id]}"
            )
