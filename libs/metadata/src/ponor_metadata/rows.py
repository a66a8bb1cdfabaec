"""Rows of the image: plain, immutable values, one class per table.

What lives here: shapes only. Which rows exist and when they change is `apply`; how they are stored and found is `tables`; how they travel
is `snapshot_layout`. A row is never changed in place: a change puts a new row, so that readers can keep the old one. Rows are tuples of
numbers, strings, bytes and such tuples, so that a table can keep millions of them out of the garbage collector's sight
(docs/design/metadata-image.md#packed-rows).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from ponor_runtime.identity import (
    ClusterOrdinal,
    NodeEpoch,
    NodeId,
    ObjectId,
    StreamEpoch,
    StreamId,
    TenantId,
)

from ponor_metadata.ranges import PackedRanges

NO_NODE: Final = NodeId(-1)
NO_EPOCH: Final = NodeEpoch(-1)
NO_LEADER: Final = NodeId(-1)
NO_STREAM: Final = StreamId(-1)
ALL_BROKERS: Final = NodeId(-1)
"""Stands for every broker in the table of dynamic settings."""


class NodeRole(IntEnum):
    """What a node is for; numbers of ponor.metadata.v1.NodeRole."""

    NONE = 0
    """Of a node that was unregistered; its row stays, because epochs of a node id never begin again."""
    BROKER = 1
    COMPACTOR = 2
    GC = 3


class WalKind(IntEnum):
    """Where a broker's write-ahead log lies; numbers of ponor.metadata.v1.WalKind. A record that says nothing means a file."""

    FILE = 1
    OBJECT = 2


class MoveCause(IntEnum):
    """Why a partition moves; numbers of ponor.metadata.v1.MoveCause."""

    REQUEST = 1
    DRAIN = 2
    BALANCE = 3


class CompactionKind(IntEnum):
    """What a compaction does; numbers of ponor.metadata.v1.CompactionKind."""

    SET_OBJECTS = 1
    FORCE_SPLIT = 2
    STREAM_OBJECTS = 3


class ObjectState(IntEnum):
    """Where an object is in its life; numbers of the snapshot's format. States only rise."""

    PREPARED = 1
    COMMITTED = 2
    DESTROYED = 3


class ClusterRow(NamedTuple):
    """Who this cluster is. At most one.

    `incarnation` counts forced recoveries; as long as the present one is unconfirmed nothing may be deleted from the store. Until
    `stop_until_ms` (cluster time) all of the cluster is being stopped: nobody drains and nobody fails over.
    """

    cluster_id: str
    cluster_ordinal: ClusterOrdinal
    namespace: str
    incarnation: int = 0
    incarnation_unconfirmed: bool = False
    stop_until_ms: int = 0
    balancer_paused: bool = False


class QuorumMemberRow(NamedTuple):
    """A controller of the quorum. One that lost its disk comes back as another member: same node, another directory."""

    node_id: NodeId
    directory_id: bytes
    peer_address: str
    service_address: str
    voter: bool


class FeatureRow(NamedTuple):
    """A finalized feature level."""

    name: str
    level: int


class TenantRow(NamedTuple):
    """A tenant, and the cluster.id that its Kafka clients see."""

    tenant_id: TenantId
    cluster_id: str


class CounterRow(NamedTuple):
    """A number that is never handed out twice, even after its last holder is gone."""

    name: str
    next_value: int


class NodeRow(NamedTuple):
    """The newest process that registered under a node id. Operations below `first_incomplete_id` were answered.

    A `draining` broker gives its partitions away and gets no new ones; the next registration or fence ends that.
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


class RangeRow(NamedTuple):
    """[start_offset, end_offset) of a stream went through the write-ahead log of `node_id` under `stream_epoch`."""

    stream_epoch: StreamEpoch
    node_id: NodeId
    start_offset: int
    end_offset: int


class StreamRow(NamedTuple):
    """A stream. Committed offsets are [start_offset, end_offset).

    `node_id` and `node_epoch` are those of the present or last owner (-1 before the first open). `writers` says who wrote which part, as
    (stream epoch, node id, start offset) one after the other: a part ends where the next begins, the last one at `end_offset`; the first
    may begin below `start_offset`. A part whose offsets are all in stream objects may be written as `NO_NODE`: only stream set objects are found by
    their node, so neighbouring parts of this kind are one part. `tag_pairs` are names and values in turn, sorted by name.
    """

    stream_id: StreamId
    stream_epoch: StreamEpoch
    open: bool
    start_offset: int
    end_offset: int
    node_id: NodeId
    node_epoch: NodeEpoch
    writers: tuple[int, ...]
    tag_pairs: tuple[str, ...]

    @property
    def ranges(self) -> tuple[RangeRow, ...]:
        """The parts, contiguous and in the order of offsets."""
        writers = self.writers
        starts = writers[2::3]
        ends = (*starts[1:], self.end_offset)
        return tuple(
            RangeRow(StreamEpoch(epoch), NodeId(node_id), start, end)
            for epoch, node_id, start, end in zip(writers[::3], writers[1::3], starts, ends, strict=False)
        )

    @property
    def tags(self) -> Mapping[str, str]:
        """Values by name."""
        return dict(zip(self.tag_pairs[::2], self.tag_pairs[1::2], strict=True))

    def range_at(self, offset: int) -> RangeRow | None:
        """The part that holds the offset; None outside of what is known."""
        i = self._part_at(offset)
        if i < 0:
            return None
        writers = self.writers
        end = writers[3 * i + 5] if 3 * i + 3 < len(writers) else self.end_offset
        return RangeRow(StreamEpoch(writers[3 * i]), NodeId(writers[3 * i + 1]), writers[3 * i + 2], end)

    def writer_of(self, offset: int) -> NodeId | None:
        """The node whose write-ahead log the offset went through; None outside of what is known."""
        i = self._part_at(offset)
        return None if i < 0 else NodeId(self.writers[3 * i + 1])

    def _part_at(self, offset: int) -> int:
        """The number of the part that holds the offset, by binary search; -1 outside of what is known."""
        writers = self.writers
        if not writers or offset >= self.end_offset:
            return -1
        if writers[-1] <= offset:  # nearly every search is for the last part
            return len(writers) // 3 - 1
        return bisect_right(range(len(writers) // 3), offset, key=lambda i: writers[3 * i + 2]) - 1


class ObjectRow(NamedTuple):
    """An object in the store, or one that may come to be there. Times are cluster time; 0 = not yet, or no more.

    Only a PREPARED object expires; only a DESTROYED one has a time of destruction and may be claimed.
    """

    object_id: ObjectId
    state: ObjectState
    namespace: str
    bucket_index: int
    node_id: NodeId
    node_epoch: NodeEpoch
    expires_at_ms: int
    size_bytes: int
    committed_at_ms: int
    destroyed_at_ms: int
    claim_node_id: NodeId
    claim_node_epoch: NodeEpoch
    claimed_until_ms: int


class StreamObjectRow(NamedTuple):
    """A stream object: [start_offset, end_offset) of one stream."""

    object_id: ObjectId
    stream_id: StreamId
    start_offset: int
    end_offset: int


class StreamSetObjectRow(NamedTuple):
    """A stream set object: pieces of many streams that went through one node. `commit_order` rises from commit to commit."""

    object_id: ObjectId
    node_id: NodeId
    commit_order: int
    ranges: PackedRanges


class ReclaimRow(NamedTuple):
    """A stream that was trimmed or deleted. Objects that hold a piece of it and nothing live are not all destroyed yet."""

    stream_id: StreamId


class DeletionRow(NamedTuple):
    """A deleted topic whose streams and keys are not all deleted yet. `name` is empty for a topic id that only orphans name."""

    topic_id: bytes
    name: str
    deleted_at_ms: int


class KeyRow(NamedTuple):
    """A small value the cluster keeps."""

    key: str
    value: bytes


class TopicRow(NamedTuple):
    """A topic. Unique by id, and by (tenant_id, name)."""

    topic_id: bytes
    tenant_id: TenantId
    name: str
    replication_factor: int
    configs: Mapping[str, str]


class BrokerConfigsRow(NamedTuple):
    """Dynamic settings of one broker, or of all of them (`ALL_BROKERS`). There is none without a setting."""

    node_id: NodeId
    configs: Mapping[str, str]


class PartitionRow(NamedTuple):
    """A partition of a topic. While it moves, the leader is still the source, and `replicas` names the target alone."""

    topic_id: bytes
    partition: int
    leader_id: NodeId
    leader_epoch: int
    replicas: tuple[NodeId, ...]


class MoveRow(NamedTuple):
    """A partition that is to be led by `target_id`. The source leads it until the election; times are cluster time.

    From `elect_at_ms` on the controller elects the target by itself, if the source has closed the streams.
    """

    topic_id: bytes
    partition: int
    source_id: NodeId
    target_id: NodeId
    begun_at_ms: int
    elect_at_ms: int
    cause: MoveCause
    reason: str
    traceparent: str


class WalRow(NamedTuple):
    """A write-ahead log in the object store that is not closed: slots from `trim_sequence` on may hold what is committed nowhere else.

    Written by the process of (node_id, wal_epoch). Once that epoch is over, the recoverer is to commit what is in it and to close it;
    `token` counts assignments (nobody: `NO_NODE`, `NO_EPOCH`, 0).
    """

    node_id: NodeId
    wal_epoch: NodeEpoch
    trim_sequence: int
    recoverer_id: NodeId
    recoverer_epoch: NodeEpoch
    token: int = 0


class CompactionRow(NamedTuple):
    """Objects that a worker is replacing: set objects of `node_id`, or stream objects of `stream_id` (the other one: `NO_NODE`, `NO_STREAM`).

    `token` counts the workers that the task was given to. A lease whose time is over stays the worker's until the task is given to another one.
    A source may be gone already, when everything in it was trimmed or deleted meanwhile.
    """

    task_id: int
    kind: CompactionKind
    node_id: NodeId
    stream_id: StreamId
    source_ids: tuple[ObjectId, ...]
    worker_id: NodeId
    worker_epoch: NodeEpoch
    token: int
    leased_until_ms: int


class SnapshotRow(NamedTuple):
    """Somebody reads the data as they were at `image_index`. What was destroyed at `begun_at_ms` or later is kept as long as the row is there."""

    lease_id: int
    holder: str
    image_index: int
    begun_at_ms: int
    leased_until_ms: int


class OperationRow(NamedTuple):
    """The answer of an operation of a node's present epoch. `result` is an encoded ponor.controller.v1.OperationResult."""

    node_id: NodeId
    request_id: int
    digest: bytes
    result: bytes
    commit_index: int
