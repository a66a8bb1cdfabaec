"""Tables: rows under keys, with indexes.

What lives here: the schema of every table and the interface that image and overlay share. Code elsewhere sees `Table` alone; how the image
packs its rows is known to `memory_table` and the tables for objects (`object_table`, `stream_object_table`, `set_object_table`). Iteration
is always in key order, and an index answers in its declared order, so that nothing depends on the history of insertions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Generic, Protocol, TypeVar

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
    ObjectState,
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

K = TypeVar("K")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 -- the key of an index

TOPIC_TAG: Final = "topic"
"""The tag under which brokers write down whose a stream is."""
PARTITION_TAG: Final = "partition"
"""The tag for the partition's number, in decimal."""


FIRST_FIELD: Final = itemgetter(0)
FIRST_TWO_FIELDS: Final = itemgetter(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Index(Generic[I, R]):
    """A second way to find rows: `keys(row)` are the index keys under which it stands, `order(row)` its place among the others there.

    `order` must be unique among the rows of one index key.
    """

    name: str
    keys: Callable[[R], Iterable[I]]
    order: Callable[[R], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Schema(Generic[K, R]):
    """What a table is: its name, the class of its rows (a `NamedTuple`), the key of a row, its indexes.

    The key is always the first field or the first two, and `key` finds it in a row and in the exact tuple that is kept of one.
    """

    name: str
    row: Callable[..., R]
    key: Callable[[R], K]
    indexes: tuple[Index[Any, R], ...] = ()


class Table(Protocol[K, R]):
    """Rows under keys, as `apply`, validators and readers see them."""

    @property
    def schema(self) -> Schema[K, R]:
        """What the table is."""
        ...

    def get(self, key: K) -> R | None:
        """The row, or None."""
        ...

    def __contains__(self, key: object) -> bool: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[R]:
        """All rows in key order, as they are now; the table may change meanwhile."""
        ...

    def find(self, index: Index[I, R], index_key: I) -> Sequence[R]:
        """The rows under an index key, in the index's order. To be read at once: a later change may or may not show."""
        ...

    def put(self, row: R) -> None:
        """Insert or replace. For `apply` alone."""
        ...

    def amend(self, row: R) -> None:
        """Replace a row by one that stands at the same place of every index. For `apply` alone; saves the look at the indexes."""
        ...

    def delete(self, key: K) -> None:
        """Remove a row that is there. For `apply` alone.

        Raises:
            KeyError: it is not.
        """
        ...


def _open_at(row: StreamRow) -> tuple[NodeId, ...]:
    return (row.node_id,) if row.open else ()


def _topic_tag(row: StreamRow) -> tuple[str, ...]:
    pairs = row.tag_pairs
    return tuple(pairs[i + 1] for i in range(0, len(pairs), 2) if pairs[i] == TOPIC_TAG)


def _partition_tags(row: StreamRow) -> tuple[tuple[str, str], ...]:
    pairs = row.tag_pairs
    topic = partition = None
    for i in range(0, len(pairs), 2):
        if pairs[i] == TOPIC_TAG:
            topic = pairs[i + 1]
        elif pairs[i] == PARTITION_TAG:
            partition = pairs[i + 1]
    return () if topic is None or partition is None else ((topic, partition),)


def _awaited_state(row: ObjectRow) -> tuple[ObjectState, ...]:
    return () if row.state is ObjectState.COMMITTED else (row.state,)


def _due(row: ObjectRow) -> tuple[int, ObjectId]:
    due_ms = row.expires_at_ms if row.state is ObjectState.PREPARED else row.destroyed_at_ms
    return due_ms, row.object_id


STREAMS_OPEN_AT: Final[Index[NodeId, StreamRow]] = Index("open_at", _open_at, lambda row: row.stream_id)
"""Open streams of a node, by stream id."""
STREAMS_OF_TOPIC: Final[Index[str, StreamRow]] = Index("of_topic", _topic_tag, lambda row: row.stream_id)
"""Streams whose tag `topic` (a topic id in hex) says so, by stream id."""
STREAMS_OF_PARTITION: Final[Index[tuple[str, str], StreamRow]] = Index(
    "of_partition", _partition_tags, lambda row: row.stream_id
)
"""Streams whose tags `topic` (a topic id in hex) and `partition` (in decimal) say so, by stream id."""
OBJECTS_WAITING: Final[Index[ObjectState, ObjectRow]] = Index("waiting", _awaited_state, _due)
"""PREPARED objects by expiry, DESTROYED ones by the time of destruction (then by object id). COMMITTED ones are not in it."""
STREAM_OBJECTS_OF: Final[Index[StreamId, StreamObjectRow]] = Index(
    "of_stream", lambda row: (row.stream_id,), lambda row: row.start_offset
)
"""A stream's objects by start offset."""
STREAM_SET_OBJECTS_AT: Final[Index[NodeId, StreamSetObjectRow]] = Index(
    "at_node", lambda row: (row.node_id,), lambda row: row.commit_order
)
"""A node's stream set objects in the order of commits."""
STREAM_SET_OBJECTS_WITH: Final[Index[StreamId, StreamSetObjectRow]] = Index(
    "with_stream", lambda row: row.ranges.decoded.stream_ids(), lambda row: row.commit_order
)
"""Stream set objects that hold a piece of the stream, of any node, in the order of commits."""
TOPICS_NAMED: Final[Index[tuple[TenantId, str], TopicRow]] = Index(
    "named", lambda row: ((row.tenant_id, row.name),), lambda row: row.topic_id
)
"""The topic of a (tenant, name): one at most."""
TOPICS_OF_TENANT: Final[Index[TenantId, TopicRow]] = Index(
    "of_tenant", lambda row: (row.tenant_id,), lambda row: row.name
)
"""A tenant's topics by name."""
PARTITIONS_OF: Final[Index[bytes, PartitionRow]] = Index(
    "of_topic", lambda row: (row.topic_id,), lambda row: row.partition
)
"""A topic's partitions by number."""
PARTITIONS_LED_BY: Final[Index[NodeId, PartitionRow]] = Index(
    "led_by", lambda row: (row.leader_id,), lambda row: (row.topic_id, row.partition)
)
"""Partitions that a broker leads, by topic id and number."""
MOVES_FROM: Final[Index[NodeId, MoveRow]] = Index(
    "from", lambda row: (row.source_id,), lambda row: (row.topic_id, row.partition)
)
"""Moves away from a broker, by topic id and number."""
MOVES_TO: Final[Index[NodeId, MoveRow]] = Index(
    "to", lambda row: (row.target_id,), lambda row: (row.topic_id, row.partition)
)
"""Moves to a broker, by topic id and number."""
WALS_OF: Final[Index[NodeId, WalRow]] = Index(
    "of_node", lambda row: (row.node_id,), lambda row: row.wal_epoch
)
"""A node's open logs by epoch, whoever recovers them."""
WALS_RECOVERED_BY: Final[Index[NodeId, WalRow]] = Index(
    "recovered_by", lambda row: (row.recoverer_id,), lambda row: (row.node_id, row.wal_epoch)
)
"""Logs that a broker is to recover (`NO_NODE`: that nobody is), by owner and epoch."""
COMPACTIONS_OF_SOURCE: Final[Index[ObjectId, CompactionRow]] = Index(
    "of_source", lambda row: row.source_ids, lambda row: row.task_id
)
"""The task of which an object is a source: one at most."""
COMPACTIONS_OF_WORKER: Final[Index[NodeId, CompactionRow]] = Index(
    "of_worker", lambda row: (row.worker_id,), lambda row: row.task_id
)
"""Tasks that a worker was given last, by task id."""
OPERATIONS_OF: Final[Index[NodeId, OperationRow]] = Index(
    "of_node", lambda row: (row.node_id,), lambda row: row.request_id
)
"""Kept results of a node by request id."""

CLUSTERS: Final[Schema[str, ClusterRow]] = Schema("clusters", ClusterRow, FIRST_FIELD)
FEATURES: Final[Schema[str, FeatureRow]] = Schema("features", FeatureRow, FIRST_FIELD)
TENANTS: Final[Schema[TenantId, TenantRow]] = Schema("tenants", TenantRow, FIRST_FIELD)
COUNTERS: Final[Schema[str, CounterRow]] = Schema("counters", CounterRow, FIRST_FIELD)
NODES: Final[Schema[NodeId, NodeRow]] = Schema("nodes", NodeRow, FIRST_FIELD)
STREAMS: Final[Schema[StreamId, StreamRow]] = Schema(
    "streams", StreamRow, FIRST_FIELD, (STREAMS_OPEN_AT, STREAMS_OF_TOPIC, STREAMS_OF_PARTITION)
)
OBJECTS: Final[Schema[ObjectId, ObjectRow]] = Schema("objects", ObjectRow, FIRST_FIELD, (OBJECTS_WAITING,))
STREAM_OBJECTS: Final[Schema[ObjectId, StreamObjectRow]] = Schema(
    "stream_objects", StreamObjectRow, FIRST_FIELD, (STREAM_OBJECTS_OF,)
)
STREAM_SET_OBJECTS: Final[Schema[ObjectId, StreamSetObjectRow]] = Schema(
    "stream_set_objects",
    StreamSetObjectRow,
    FIRST_FIELD,
    (STREAM_SET_OBJECTS_AT, STREAM_SET_OBJECTS_WITH),
)
KEYS: Final[Schema[str, KeyRow]] = Schema("keys", KeyRow, FIRST_FIELD)
TOPICS: Final[Schema[bytes, TopicRow]] = Schema(
    "topics", TopicRow, FIRST_FIELD, (TOPICS_NAMED, TOPICS_OF_TENANT)
)
BROKER_CONFIGS: Final[Schema[NodeId, BrokerConfigsRow]] = Schema(
    "broker_configs", BrokerConfigsRow, FIRST_FIELD
)
PARTITIONS: Final[Schema[tuple[bytes, int], PartitionRow]] = Schema(
    "partitions", PartitionRow, FIRST_TWO_FIELDS, (PARTITIONS_OF, PARTITIONS_LED_BY)
)
MOVES: Final[Schema[tuple[bytes, int], MoveRow]] = Schema(
    "moves", MoveRow, FIRST_TWO_FIELDS, (MOVES_FROM, MOVES_TO)
)
WALS: Final[Schema[tuple[NodeId, NodeEpoch], WalRow]] = Schema(
    "wals", WalRow, FIRST_TWO_FIELDS, (WALS_OF, WALS_RECOVERED_BY)
)
COMPACTIONS: Final[Schema[int, CompactionRow]] = Schema(
    "compactions", CompactionRow, FIRST_FIELD, (COMPACTIONS_OF_SOURCE, COMPACTIONS_OF_WORKER)
)
SNAPSHOTS: Final[Schema[int, SnapshotRow]] = Schema("snapshots", SnapshotRow, FIRST_FIELD)
OPERATIONS: Final[Schema[tuple[NodeId, int], OperationRow]] = Schema(
    "operations", OperationRow, FIRST_TWO_FIELDS, (OPERATIONS_OF,)
)
QUORUM: Final[Schema[tuple[NodeId, bytes], QuorumMemberRow]] = Schema(
    "quorum", QuorumMemberRow, FIRST_TWO_FIELDS
)
RECLAIMS: Final[Schema[StreamId, ReclaimRow]] = Schema("reclaims", ReclaimRow, FIRST_FIELD)
DELETIONS: Final[Schema[bytes, DeletionRow]] = Schema("deletions", DeletionRow, FIRST_FIELD)
