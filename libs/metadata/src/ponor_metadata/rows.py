"""Rows of the image: plain, immutable values, one class per table.

What lives here: shapes only. Which rows exist and when they change is `apply`; how they are stored and found is `tables`; how they travel
is `snapshot_rows`. A row is never changed in place: a change puts a new row, so that readers can keep the old one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import Final

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
ALL_BROKERS: Final = NodeId(-1)
"""Stands for every broker in the table of dynamic settings."""


class NodeRole(IntEnum):
    """What a node is for; numbers of ponor.metadata.v1.NodeRole."""

    BROKER = 1
    COMPACTOR = 2
    GC = 3


class ObjectState(IntEnum):
    """Where an object is in its life; numbers of ponor.metadata.v1.ObjectState. States only rise."""

    PREPARED = 1
    COMMITTED = 2
    DESTROYED = 3


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """Who this cluster is. At most one."""

    cluster_id: str
    cluster_ordinal: ClusterOrdinal
    namespace: str


@dataclass(frozen=True, slots=True)
class FeatureRow:
    """A finalized feature level."""

    name: str
    level: int


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant, and the cluster.id that its Kafka clients see."""

    tenant_id: TenantId
    cluster_id: str


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A number that is never handed out twice, even after its last holder is gone."""

    name: str
    next_value: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """The newest process that registered under a node id. Operations below `first_incomplete_id` were answered."""

    node_id: NodeId
    node_epoch: NodeEpoch
    role: NodeRole
    incarnation: bytes
    kafka_host: str
    kafka_port: int
    registered_at_ms: int
    fenced: bool
    first_incomplete_id: int


@dataclass(frozen=True, slots=True)
class RangeRow:
    """[start_offset, end_offset) of a stream went through the write-ahead log of `node_id` under `stream_epoch`."""

    stream_epoch: StreamEpoch
    node_id: NodeId
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream. Committed offsets are [start_offset, end_offset).

    `node_id` and `node_epoch` are those of the present or last owner (-1 before the first open). `ranges` are contiguous and ordered;
    the last one ends at `end_offset`; the first may begin below `start_offset`.
    """

    stream_id: StreamId
    stream_epoch: StreamEpoch
    open: bool
    start_offset: int
    end_offset: int
    node_id: NodeId
    node_epoch: NodeEpoch
    ranges: tuple[RangeRow, ...]
    tags: Mapping[str, str]

    def range_at(self, offset: int) -> RangeRow | None:
        """The range that holds the offset; None outside of what is known."""
        i = bisect_right(self.ranges, offset, key=attrgetter("end_offset"))
        if i == len(self.ranges) or self.ranges[i].start_offset > offset:
            return None
        return self.ranges[i]

    def advanced_to(self, end_offset: int) -> StreamRow:
        """The row with its end, and its last range's, further on. Spelled out: `dataclasses.replace` costs four times as much, and one
        commit does this for thousands of streams.
        """
        last = self.ranges[-1]
        return StreamRow(
            self.stream_id,
            self.stream_epoch,
            self.open,
            self.start_offset,
            end_offset,
            self.node_id,
            self.node_epoch,
            (*self.ranges[:-1], RangeRow(last.stream_epoch, last.node_id, last.start_offset, end_offset)),
            self.tags,
        )


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """An object in the store, or one that may come to be there. Times are cluster time; 0 = not yet."""

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


@dataclass(frozen=True, slots=True)
class StreamObjectRow:
    """A stream object: [start_offset, end_offset) of one stream."""

    object_id: ObjectId
    stream_id: StreamId
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class StreamSetObjectRow:
    """A stream set object: pieces of many streams that went through one node. `commit_order` rises from commit to commit."""

    object_id: ObjectId
    node_id: NodeId
    commit_order: int
    ranges: PackedRanges


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A small value the cluster keeps."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic. Unique by id, and by (tenant_id, name)."""

    topic_id: bytes
    tenant_id: TenantId
    name: str
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BrokerConfigsRow:
    """Dynamic settings of one broker, or of all of them (`ALL_BROKERS`). There is none without a setting."""

    node_id: NodeId
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of a topic."""

    topic_id: bytes
    partition: int
    leader_id: NodeId
    leader_epoch: int
    replicas: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class OperationRow:
    """The answer of an operation of a node's present epoch. `result` is an encoded ponor.controller.v1.OperationResult."""

    node_id: NodeId
    request_id: int
    digest: bytes
    result: bytes
    commit_index: int
