"""A view of the metadata: what `apply` changes and what validators and the read index read.

Two classes fulfil it: the image (committed batches only) and the overlay (image plus what the leader proposed). Code that decides
takes a view; code that serves takes the image.
"""

from __future__ import annotations

from typing import Protocol

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamId, TenantId

from ponor_metadata.rows import (
    BrokerConfigsRow,
    ClusterRow,
    CompactionRow,
    CounterRow,
    DeletionRow,
    FeatureRow,
    KeyRow,
    MoveRow,
    NodeRow,
    ObjectRow,
    OperationRow,
    PartitionRow,
    QuorumMemberRow,
    ReclaimRow,
    SnapshotRow,
    StreamObjectRow,
    StreamRow,
    StreamSetObjectRow,
    TenantRow,
    TopicRow,
    WalRow,
)
from ponor_metadata.tables import Table


class View(Protocol):
    """All tables, as of one batch."""

    @property
    def index(self) -> int:
        """Index of the newest batch in this view; 0 before the first."""
        ...

    @property
    def cluster_time_ms(self) -> int:
        """Cluster clock of that batch."""
        ...

    @property
    def clusters(self) -> Table[str, ClusterRow]:
        """At most one row."""
        ...

    @property
    def features(self) -> Table[str, FeatureRow]:
        """By name."""
        ...

    @property
    def tenants(self) -> Table[TenantId, TenantRow]:
        """By tenant id."""
        ...

    @property
    def counters(self) -> Table[str, CounterRow]:
        """By name; see `ponor_metadata.counters`."""
        ...

    @property
    def nodes(self) -> Table[NodeId, NodeRow]:
        """By node id."""
        ...

    @property
    def streams(self) -> Table[StreamId, StreamRow]:
        """By stream id."""
        ...

    @property
    def objects(self) -> Table[ObjectId, ObjectRow]:
        """By object id."""
        ...

    @property
    def stream_objects(self) -> Table[ObjectId, StreamObjectRow]:
        """By object id."""
        ...

    @property
    def stream_set_objects(self) -> Table[ObjectId, StreamSetObjectRow]:
        """By object id."""
        ...

    @property
    def keys(self) -> Table[str, KeyRow]:
        """By key."""
        ...

    @property
    def topics(self) -> Table[bytes, TopicRow]:
        """By topic id."""
        ...

    @property
    def partitions(self) -> Table[tuple[bytes, int], PartitionRow]:
        """By (topic id, partition)."""
        ...

    @property
    def broker_configs(self) -> Table[NodeId, BrokerConfigsRow]:
        """By node id; `rows.ALL_BROKERS` for what holds for every broker."""
        ...

    @property
    def operations(self) -> Table[tuple[NodeId, int], OperationRow]:
        """By (node id, request id)."""
        ...

    @property
    def quorum(self) -> Table[tuple[NodeId, bytes], QuorumMemberRow]:
        """By (node id, directory id)."""
        ...

    @property
    def moves(self) -> Table[tuple[bytes, int], MoveRow]:
        """By (topic id, partition)."""
        ...

    @property
    def wals(self) -> Table[tuple[NodeId, NodeEpoch], WalRow]:
        """By (node id, wal epoch)."""
        ...

    @property
    def compactions(self) -> Table[int, CompactionRow]:
        """By task id."""
        ...

    @property
    def snapshots(self) -> Table[int, SnapshotRow]:
        """By lease id."""
        ...

    @property
    def reclaims(self) -> Table[StreamId, ReclaimRow]:
        """By stream id."""
        ...

    @property
    def deletions(self) -> Table[bytes, DeletionRow]:
        """By topic id."""
        ...

    def begin(self, batch: RecordBatch) -> None:
        """Called by `apply_batch` before the first record: from now on the view is as of this batch."""
        ...


def cluster_of(view: View) -> ClusterRow | None:
    """Who this cluster is; None before it was formatted."""
    return next(iter(view.clusters), None)


def is_current(view: View, node_id: NodeId, node_epoch: int) -> bool:
    """Whether the process with this epoch is the newest under its node id, and not fenced."""
    node = view.nodes.get(node_id)
    return node is not None and node.node_epoch == node_epoch and not node.fenced
