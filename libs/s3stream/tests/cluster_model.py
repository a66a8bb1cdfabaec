"""A reference model of the controller, as far as s3stream sees it: the semantics of both ports, checked strictly, in memory.

For tests of s3stream alone; the real controller has its own. The model outlives the processes of a node: `register` is what a process does at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ponor_runtime.clock import Clock
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from s3stream.errors import (
    CommitRefusedError,
    PreparedExpiredError,
    StreamFencedError,
    StreamNotClosedError,
    StreamNotFoundError,
)
from s3stream.ports import PIECES_MAX, ObjectPiece, PreparedObjects, StreamRange, StreamState, UploadedObject

NAMESPACE = "model"


@dataclass
class StreamRow:
    epoch: int = -1
    start_offset: int = 0
    end_offset: int = 0
    open: bool = False
    pieces: list[ObjectPiece] = field(default_factory=list)


@dataclass
class CommitRow:
    stream_set_object: UploadedObject | None
    stream_objects: tuple[UploadedObject, ...]


class ClusterModel:
    """The cluster's state, and the log of what was committed."""

    def __init__(self, clock: Clock, *, prepared_ttl_ms: int = 3_600_000) -> None:
        self.clock = clock
        self.prepared_ttl_ns = prepared_ttl_ms * 1_000_000
        self.node_epoch = 0
        self.streams: dict[StreamId, StreamRow] = {}
        self.prepared: dict[ObjectId, int] = {}
        self.committed: dict[ObjectId, UploadedObject] = {}
        self.commits: list[CommitRow] = []
        self.hidden_streams: set[StreamId] = set()
        """Streams that the node's image does not show yet."""
        self.on_step: Callable[[str], None] = lambda _: None
        """Called before and after each change, such as "commit:before"; may raise to play a crash."""
        self._next_stream = 1
        self._next_object = 1

    def register(self) -> ClusterNode:
        """A new process of the node: the older ones are fenced."""
        self.node_epoch += 1
        return ClusterNode(self, self.node_epoch)

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
    """Both ports, for one process of the node."""

    def __init__(self, cluster: ClusterModel, epoch: int) -> None:
        self.cluster = cluster
        self.epoch = epoch

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
            row.open, row.epoch = True, epoch
        self._step("open:after")
        return [self._state(stream_id) for stream_id, _ in streams]

    async def close_streams(self, streams: Sequence[StreamState]) -> None:
        self._step("close:before")
        assert len(streams) <= 1000
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
        return [self._state(stream_id) for stream_id, row in self.cluster.streams.items() if row.open]

    def exists(self, stream_id: StreamId) -> bool:
        return stream_id in self.cluster.streams and stream_id not in self.cluster.hidden_streams

    async def prepare_objects(self, count: int) -> PreparedObjects:
        self._step("prepare:before")
        assert 1 <= count <= 10_000
        first = self.cluster.new_objects(count)
        self._step("prepare:after")
        return PreparedObjects(first, count, NAMESPACE, 0)

    async def commit_upload(
        self, stream_set_object: UploadedObject | None, stream_objects: Sequence[UploadedObject]
    ) -> None:
        self._step("commit:before")
        objects = [*([] if stream_set_object is None else [stream_set_object]), *stream_objects]
        assert objects, "an empty commit"
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
        for part, _ in ranges:
            self._check_range(part)
        for part, uploaded in ranges:
            self._apply(part, uploaded)
        for uploaded in objects:
            del self.cluster.prepared[uploaded.object_id]
            self.cluster.committed[uploaded.object_id] = uploaded
        self.cluster.commits.append(CommitRow(stream_set_object, tuple(stream_objects)))
        self._step("commit:after")

    async def find_objects(
        self, stream_id: StreamId, start_offset: int, end_offset: int, *, pieces_max: int = PIECES_MAX
    ) -> list[ObjectPiece]:
        pieces = self.cluster.streams[stream_id].pieces
        return [
            piece for piece in pieces if piece.end_offset > start_offset and piece.start_offset < end_offset
        ][:pieces_max]

    def _check_range(self, part: StreamRange) -> None:
        assert part.start_offset < part.end_offset
        row = self.cluster.streams.get(part.stream_id)
        if row is None:
            return  # ranges of deleted streams are ignored
        if not row.open or row.epoch != part.epoch or row.end_offset != part.start_offset:
            raise CommitRefusedError(f"{part} does not continue {row}")

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
        if self.epoch != self.cluster.node_epoch:
            raise CommitRefusedError(f"node epoch {self.epoch} is fenced by {self.cluster.node_epoch}")
