"""Tables: rows under keys, with indexes.

What lives here: the schema of every table and the interface that image and overlay share. Code elsewhere sees `Table` alone; how the image
packs its rows is known to `memory_table` and the tables for objects (`object_table`, `stream_object_table`, `set_object_table`). Iteration
is always in key order, and an index answers in its declared order, so that nothing depends on the history of insertions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from ponor_runtime.identity import NodeId, ObjectId, StreamId, TenantId

from ponor_metadata.rows import (
    BrokerConfigsRow,
    ClusterRow,
    CounterRow,
    FeatureRow,
    KeyRow,
    NodeRow,
    ObjectRow,
    ObjectState,
    OperationRow,
    PartitionRow,
    QuorumMemberRow,
    StreamObjectRow,
    StreamRow,
    StreamSetObjectRow,
    TenantRow,
    TopicRow,
)

K = TypeVar("K")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 -- the key of an index

TOPIC_TAG: Final = "topic"
"""The tag under which brokers write down whose a stream is."""


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
    """What a table is: its name, the class of its rows (a `NamedTuple`), the key of a row, its indexes."""

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


def _awaited_state(row: ObjectRow) -> tuple[ObjectState, ...]:
    return () if row.state is ObjectState.COMMITTED else (row.state,)


def _due(row: ObjectRow) -> tuple[int, ObjectId]:
    due_ms = row.expires_at_ms if row.state is ObjectState.PREPARED else row.destroyed_at_ms
    return due_ms, row.object_id


STREAMS_OPEN_AT: Final[Index[NodeId, StreamRow]] = Index("open_at", _open_at, lambda row: row.stream_id)
"""Open streams of a node, by stream id."""
STREAMS_OF_TOPIC: Final[Index[str, StreamRow]] = Index("of_topic", _topic_tag, lambda row: row.stream_id)
"""Streams whose tag `topic` (a topic id in hex) says so, by stream id."""
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
OPERATIONS_OF: Final[Index[NodeId, OperationRow]] = Index(
    "of_node", lambda row: (row.node_id,), lambda row: row.request_id
)
"""Kept results of a node by request id."""

CLUSTERS: Final[Schema[str, ClusterRow]] = Schema("clusters", ClusterRow, lambda row: row.cluster_id)
FEATURES: Final[Schema[str, FeatureRow]] = Schema("features", FeatureRow, lambda row: row.name)
TENANTS: Final[Schema[TenantId, TenantRow]] = Schema("tenants", TenantRow, lambda row: row.tenant_id)
COUNTERS: Final[Schema[str, CounterRow]] = Schema("counters", CounterRow, lambda row: row.name)
NODES: Final[Schema[NodeId, NodeRow]] = Schema("nodes", NodeRow, lambda row: row.node_id)
STREAMS: Final[Schema[StreamId, StreamRow]] = Schema(
    "streams", StreamRow, lambda row: row.stream_id, (STREAMS_OPEN_AT, STREAMS_OF_TOPIC)
)
OBJECTS: Final[Schema[ObjectId, ObjectRow]] = Schema(
    "objects", ObjectRow, lambda row: row.object_id, (OBJECTS_WAITING,)
)
STREAM_OBJECTS: Final[Schema[ObjectId, StreamObjectRow]] = Schema(
    "stream_objects", StreamObjectRow, lambda row: row.object_id, (STREAM_OBJECTS_OF,)
)
STREAM_SET_OBJECTS: Final[Schema[ObjectId, StreamSetObjectRow]] = Schema(
    "stream_set_objects",
    StreamSetObjectRow,
    lambda row: row.object_id,
    (STREAM_SET_OBJECTS_AT, STREAM_SET_OBJECTS_WITH),
)
KEYS: Final[Schema[str, KeyRow]] = Schema("keys", KeyRow, lambda row: row.key)
TOPICS: Final[Schema[bytes, TopicRow]] = Schema(
    "topics", TopicRow, lambda row: row.topic_id, (TOPICS_NAMED, TOPICS_OF_TENANT)
)
BROKER_CONFIGS: Final[Schema[NodeId, BrokerConfigsRow]] = Schema(
    "broker_configs", BrokerConfigsRow, lambda row: row.node_id
)
PARTITIONS: Final[Schema[tuple[bytes, int], PartitionRow]] = Schema(
    "partitions", PartitionRow, lambda row: (row.topic_id, row.partition), (PARTITIONS_OF, PARTITIONS_LED_BY)
)
OPERATIONS: Final[Schema[tuple[NodeId, int], OperationRow]] = Schema(
    "operations", OperationRow, lambda row: (row.node_id, row.request_id), (OPERATIONS_OF,)
)
QUORUM: Final[Schema[tuple[NodeId, bytes], QuorumMemberRow]] = Schema(
    "quorum", QuorumMemberRow, lambda row: (row.node_id, row.directory_id)
)
