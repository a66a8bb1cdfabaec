"""Tables: rows under keys, with indexes. The only place that knows how rows are stored.

What lives here: the schema of every table, the interface that image and overlay share, and the in-memory table of the image. Code
elsewhere sees `Table` alone, so that rows can be packed later without a change to it. Iteration is always in key order, and an index
answers in its declared order, so that nothing depends on the history of insertions.
"""

from __future__ import annotations

from bisect import bisect_left
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
    """What a table is: its name, the key of a row, its indexes."""

    name: str
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

    def delete(self, key: K) -> None:
        """Remove a row that is there. For `apply` alone."""
        ...


class MemoryTable(Generic[K, R]):
    """The image's table: a dict of rows, and per index a dict of sorted lists."""

    __slots__ = ("_indexes", "_rows", "_schema")

    def __init__(self, schema: Schema[K, R]) -> None:
        self._schema = schema
        self._rows: dict[K, R] = {}
        self._indexes: dict[str, dict[Any, list[R]]] = {index.name: {} for index in schema.indexes}

    @property
    def schema(self) -> Schema[K, R]:
        return self._schema

    def get(self, key: K) -> R | None:
        return self._rows.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[R]:
        # Keys of one table are of one type and ordered; the type variable cannot say so.
        rows = self._rows
        return iter([rows[key] for key in sorted(rows)])  # type: ignore[type-var]

    def find(self, index: Index[I, R], index_key: I) -> Sequence[R]:
        return self._indexes[index.name].get(index_key, ())

    def put(self, row: R) -> None:
        key = self._schema.key(row)
        old = self._rows.get(key)
        self._rows[key] = row
        for index in self._schema.indexes:
            self._reindex(index, old, row)

    def delete(self, key: K) -> None:
        row = self._rows.pop(key)
        for index in self._schema.indexes:
            self._reindex(index, row, None)

    def _reindex(self, index: Index[Any, R], old: R | None, new: R | None) -> None:
        lists = self._indexes[index.name]
        old_keys = () if old is None else tuple(index.keys(old))
        new_keys = () if new is None else tuple(index.keys(new))
        stays = old is not None and new is not None and index.order(old) == index.order(new)
        if old is not None:
            for index_key in old_keys:
                rows = lists[index_key]
                position = bisect_left(rows, index.order(old), key=index.order)
                if new is not None and stays and index_key in new_keys:
                    rows[position] = new
                    continue
                del rows[position]
                if not rows:
                    del lists[index_key]
        if new is not None:
            for index_key in new_keys:
                if stays and index_key in old_keys:
                    continue
                insert_sorted(lists.setdefault(index_key, []), new, index)


def insert_sorted(rows: list[R], row: R, index: Index[Any, R]) -> None:
    """Insert a row at its place in an index's order."""
    order = index.order(row)
    if not rows or index.order(rows[-1]) < order:  # most rows come in order
        rows.append(row)
        return
    position = bisect_left(rows, order, key=index.order)
    assert index.order(rows[position]) != order, f"{index.name}: two rows at {order}"
    rows.insert(position, row)


def _open_at(row: StreamRow) -> tuple[NodeId, ...]:
    return (row.node_id,) if row.open else ()


def _topic_tag(row: StreamRow) -> tuple[str, ...]:
    topic = row.tags.get(TOPIC_TAG)
    return () if topic is None else (topic,)


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

CLUSTERS: Final[Schema[str, ClusterRow]] = Schema("clusters", lambda row: row.cluster_id)
FEATURES: Final[Schema[str, FeatureRow]] = Schema("features", lambda row: row.name)
TENANTS: Final[Schema[TenantId, TenantRow]] = Schema("tenants", lambda row: row.tenant_id)
COUNTERS: Final[Schema[str, CounterRow]] = Schema("counters", lambda row: row.name)
NODES: Final[Schema[NodeId, NodeRow]] = Schema("nodes", lambda row: row.node_id)
STREAMS: Final[Schema[StreamId, StreamRow]] = Schema(
    "streams", lambda row: row.stream_id, (STREAMS_OPEN_AT, STREAMS_OF_TOPIC)
)
OBJECTS: Final[Schema[ObjectId, ObjectRow]] = Schema("objects", lambda row: row.object_id, (OBJECTS_WAITING,))
STREAM_OBJECTS: Final[Schema[ObjectId, StreamObjectRow]] = Schema(
    "stream_objects", lambda row: row.object_id, (STREAM_OBJECTS_OF,)
)
STREAM_SET_OBJECTS: Final[Schema[ObjectId, StreamSetObjectRow]] = Schema(
    "stream_set_objects", lambda row: row.object_id, (STREAM_SET_OBJECTS_AT, STREAM_SET_OBJECTS_WITH)
)
KEYS: Final[Schema[str, KeyRow]] = Schema("keys", lambda row: row.key)
TOPICS: Final[Schema[bytes, TopicRow]] = Schema(
    "topics", lambda row: row.topic_id, (TOPICS_NAMED, TOPICS_OF_TENANT)
)
BROKER_CONFIGS: Final[Schema[NodeId, BrokerConfigsRow]] = Schema("broker_configs", lambda row: row.node_id)
PARTITIONS: Final[Schema[tuple[bytes, int], PartitionRow]] = Schema(
    "partitions", lambda row: (row.topic_id, row.partition), (PARTITIONS_OF, PARTITIONS_LED_BY)
)
OPERATIONS: Final[Schema[tuple[NodeId, int], OperationRow]] = Schema(
    "operations", lambda row: (row.node_id, row.request_id), (OPERATIONS_OF,)
)
