"""Topics, their partitions, moves of partitions, and deletions of topics that are not complete.

A move changes no leader. Until `PartitionChanged` ends it, the source leads at its epoch, and `replicas`
names the target.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import NodeId, TenantId

from ponor_metadata.nouns.cluster import TENANTS, epoch_floor
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_TOPIC
from ponor_metadata.tables.columns import BLOBS, INTEGERS, SETTINGS, TEXTS, Enums, Lists
from ponor_metadata.tables.schema import (
    FIRST_FIELD,
    FIRST_TWO_FIELDS,
    Index,
    Noun,
    Schema,
    Section,
    View,
)

NO_LEADER: Final = NodeId(-1)
FIRST_LEADER_EPOCH: Final = 0
TOPIC_ID_BYTES: Final = 16
TOPIC_HEX_CHARACTERS: Final = 32


class MoveCause(IntEnum):
    """Why a partition moves; the same numbers as in ponor.metadata.v1.MoveCause."""

    REQUEST = 1
    DRAIN = 2
    BALANCE = 3


class TopicRow(NamedTuple):
    """A topic. Unique by id, and by (tenant_id, name)."""

    topic_id: bytes
    tenant_id: TenantId
    name: str
    replication_factor: int
    configs: Mapping[str, str]


class PartitionRow(NamedTuple):
    """A partition of a topic. During a move the leader is still the source, and `replicas` contains only the
    target.
    """

    topic_id: bytes
    partition: int
    leader_id: NodeId
    leader_epoch: int
    replicas: tuple[NodeId, ...]


class MoveRow(NamedTuple):
    """A move of a partition to `target_id`. The source leads it until the election. Times: cluster time.

    At `elect_at_ms` the controller elects the target even without a request, if the source has closed the
    streams.
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


class DeletionRow(NamedTuple):
    """A deleted topic with streams or keys that are not deleted yet.

    `name` is empty if the topic never existed and only orphaned streams or keys refer to its id.
    """

    topic_id: bytes
    name: str
    deleted_at_ms: int


TOPICS_NAMED: Final[Index[tuple[TenantId, str], TopicRow]] = Index(
    "named", lambda row: ((row.tenant_id, row.name),), lambda row: row.topic_id
)
"""The topic with a tenant and a name: at most one."""
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

TOPICS: Final[Schema[bytes, TopicRow]] = Schema(
    "topics",
    TopicRow,
    FIRST_FIELD,
    (Section(12, (BLOBS, TEXTS, TEXTS, INTEGERS, SETTINGS), weighed=(4,)),),
    (TOPICS_NAMED, TOPICS_OF_TENANT),
)
PARTITIONS: Final[Schema[tuple[bytes, int], PartitionRow]] = Schema(
    "partitions",
    PartitionRow,
    FIRST_TWO_FIELDS,
    (Section(13, (BLOBS, INTEGERS, INTEGERS, INTEGERS, Lists(INTEGERS))),),
    (PARTITIONS_OF, PARTITIONS_LED_BY),
)
MOVES: Final[Schema[tuple[bytes, int], MoveRow]] = Schema(
    "moves",
    MoveRow,
    FIRST_TWO_FIELDS,
    (Section(17, (BLOBS, *[INTEGERS] * 5, Enums(MoveCause), TEXTS, TEXTS), weighed=(7, 8)),),
    (MOVES_FROM, MOVES_TO),
)
DELETIONS: Final[Schema[bytes, DeletionRow]] = Schema(
    "deletions", DeletionRow, FIRST_FIELD, (Section(22, (BLOBS, TEXTS, INTEGERS), weighed=(1,)),)
)


def parse_topic_id(named: str) -> bytes | None:
    """Parse the topic id in a stream's tag or in a part of a key; None if the text is not a topic id.

    The form is lower-case hexadecimal.
    """
    if len(named) != TOPIC_HEX_CHARACTERS:
        return None
    try:
        topic_id = bytes.fromhex(named)
    except ValueError:
        return None
    return topic_id if topic_id.hex() == named else None


def next_leader_epoch(view: View, present: PartitionRow | None) -> int:
    """Return the epoch of the next leader of a partition; `present` is None for a new partition."""
    following = FIRST_LEADER_EPOCH if present is None else present.leader_epoch + 1
    return max(following, epoch_floor(view))


def topic_created(view: View, record: records.TopicCreated) -> None:
    """Create a topic, unique by id and by (tenant, name)."""
    tenant_id = TenantId(record.tenant_id)
    assert len(record.topic_id) == TOPIC_ID_BYTES, "a topic id is a UUID of 16 bytes"
    assert record.topic_id not in view[TOPICS], f"topic {record.topic_id.hex()} exists"
    assert tenant_id in view[TENANTS], f"tenant {tenant_id!r} does not exist"
    assert not view[TOPICS].find(TOPICS_NAMED, (tenant_id, record.name)), f"topic {record.name!r} exists"
    view[TOPICS].put(
        TopicRow(record.topic_id, tenant_id, record.name, record.replication_factor, dict(record.configs))
    )


def topic_configs_set(view: View, record: records.TopicConfigsSet) -> None:
    """Replace all settings of a topic."""
    topic = view[TOPICS].get(record.topic_id)
    assert topic is not None, f"topic {record.topic_id.hex()} does not exist"
    view[TOPICS].put(topic._replace(configs=dict(record.configs)))


def topic_deleted(view: View, record: records.TopicDeleted) -> None:
    """Delete a topic with its partitions and moves. Its streams and keys are deleted later."""
    topic = view[TOPICS].get(record.topic_id)
    assert topic is not None, f"topic {record.topic_id.hex()} does not exist"
    for partition in list(view[PARTITIONS].find(PARTITIONS_OF, record.topic_id)):
        key = (record.topic_id, partition.partition)
        view[PARTITIONS].delete(key)
        if key in view[MOVES]:
            view[MOVES].delete(key)
    view[TOPICS].delete(record.topic_id)
    view[DELETIONS].put(DeletionRow(record.topic_id, topic.name, view.cluster_time_ms))


def orphans_found(view: View, record: records.OrphansFound) -> None:
    """Begin the deletion of streams and keys that refer to a topic that does not exist."""
    topic_id = record.topic_id
    assert len(topic_id) == TOPIC_ID_BYTES, "a topic id is a UUID of 16 bytes"
    assert topic_id not in view[TOPICS], f"topic {topic_id.hex()} exists"
    assert topic_id not in view[DELETIONS], f"topic {topic_id.hex()} is being deleted"
    view[DELETIONS].put(DeletionRow(topic_id, "", view.cluster_time_ms))


def topic_purged(view: View, record: records.TopicPurged) -> None:
    """End the deletion of a topic. No stream may refer to it now, because it would never be deleted."""
    assert record.topic_id in view[DELETIONS], f"topic {record.topic_id.hex()} is not being deleted"
    left = next(iter(view[STREAMS].find(STREAMS_OF_TOPIC, record.topic_id.hex())), None)
    assert left is None, f"topic {record.topic_id.hex()}: its stream {left} is not deleted yet"
    view[DELETIONS].delete(record.topic_id)


def partition_changed(view: View, record: records.PartitionChanged) -> None:
    """Create a partition or change its leader, and end its move.

    The leader epoch rises with every change of leader and never falls.
    """
    # Each field of the record is read once: a topic can have a thousand partitions in one batch.
    topic_id, number = record.topic_id, record.partition
    leader_id, leader_epoch = NodeId(record.leader_id), record.leader_epoch
    key = (topic_id, number)
    partitions = view[PARTITIONS]
    assert topic_id in view[TOPICS], f"topic {topic_id.hex()} does not exist"
    present = partitions.get(key)
    if present is None:
        # Partition numbers have no gaps, so checking the previous number is enough. Counting the partitions
        # each time would take n² steps for n partitions.
        assert number == 0 or (topic_id, number - 1) in partitions, (
            f"partition {number} cannot exist without partition {number - 1}"
        )
    else:
        rises = leader_epoch > present.leader_epoch
        same = (leader_epoch, leader_id) == (present.leader_epoch, present.leader_id)
        assert rises or same, f"leader epoch {present.leader_epoch} does not rise with a new leader"
    if present is None or leader_epoch != present.leader_epoch:
        assert leader_epoch >= epoch_floor(view), f"leader epoch {leader_epoch} is of an earlier incarnation"
    if key in view[MOVES]:
        view[MOVES].delete(key)
    replicas = tuple(map(NodeId, record.replicas))
    partitions.put(PartitionRow(topic_id, number, leader_id, leader_epoch, replicas))


def partition_move_begun(view: View, record: records.PartitionMoveBegun) -> None:
    """Begin a move from the leader to another broker. A partition has at most one move."""
    key = (record.topic_id, record.partition)
    partition = _partition(view, *key)
    name = f"partition {record.partition} of {record.topic_id.hex()}"
    source_id, target_id = NodeId(record.source_id), NodeId(record.target_id)
    assert key not in view[MOVES], f"{name} is already moving"
    assert source_id == partition.leader_id, (
        f"{name} is led by node {partition.leader_id}, not by node {source_id}"
    )
    assert target_id != source_id, f"{name} is already at node {target_id}"
    target = view[NODES].get(target_id)
    assert target is not None, f"{name}: its target {target_id} is unknown"
    assert target.role is NodeRole.BROKER, f"{name}: its target {target_id} is not a broker"
    assert not target.fenced, f"{name}: its target {target_id} is fenced"
    assert record.elect_at_ms >= record.begun_at_ms, (
        f"{name}: the time of the election is before the move begins"
    )
    view[MOVES].put(
        MoveRow(
            topic_id=record.topic_id,
            partition=record.partition,
            source_id=source_id,
            target_id=target_id,
            begun_at_ms=record.begun_at_ms,
            elect_at_ms=record.elect_at_ms,
            cause=MoveCause(record.cause),
            reason=record.reason,
            traceparent=record.traceparent,
        )
    )
    view[PARTITIONS].put(partition._replace(replicas=(target_id,)))


def partition_move_cancelled(view: View, record: records.PartitionMoveCancelled) -> None:
    """Cancel a move. The leader keeps the partition and its epoch."""
    key = (record.topic_id, record.partition)
    partition = _partition(view, *key)
    assert key in view[MOVES], f"partition {record.partition} of {record.topic_id.hex()} is not moving"
    view[MOVES].delete(key)
    view[PARTITIONS].put(partition._replace(replicas=(partition.leader_id,)))


def _partition(view: View, topic_id: bytes, number: int) -> PartitionRow:
    partition = view[PARTITIONS].get((topic_id, number))
    assert partition is not None, f"partition {number} of {topic_id.hex()} does not exist"
    return partition


def _check(view: View) -> None:
    names: dict[tuple[str, str], bytes] = {}
    for topic in view[TOPICS]:
        assert topic.tenant_id in view[TENANTS], f"topic {topic.name!r}: its tenant is unknown"
        twin = names.setdefault((topic.tenant_id, topic.name), topic.topic_id)
        assert twin == topic.topic_id, f"topic {topic.name!r}: two topics of one tenant have this name"
    for deletion in view[DELETIONS]:
        assert deletion.topic_id not in view[TOPICS], f"topic {deletion.topic_id.hex()} exists and is deleted"
    numbers: dict[bytes, int] = defaultdict(int)
    for partition in view[PARTITIONS]:
        assert partition.topic_id in view[TOPICS], "a partition has no topic"
        assert partition.partition == numbers[partition.topic_id], (
            f"partition {partition.partition}: the partition before it does not exist"
        )
        numbers[partition.topic_id] += 1
        _check_move(view, partition)
    for move in view[MOVES]:
        assert (move.topic_id, move.partition) in view[PARTITIONS], "a move has no partition"


def _check_move(view: View, partition: PartitionRow) -> None:
    move = view[MOVES].get((partition.topic_id, partition.partition))
    if move is None:
        return
    name = f"move of {partition.topic_id.hex()}/{partition.partition}"
    assert move.source_id == partition.leader_id, (
        f"{name}: node {partition.leader_id} leads the partition, not the source"
    )
    assert move.target_id != move.source_id, f"{name}: source and target are the same"
    assert move.target_id in view[NODES], f"{name}: its target is unknown"
    assert partition.replicas == (move.target_id,), f"{name}: the replicas are not the target alone"


NOUN: Final = Noun(
    schemas=(TOPICS, PARTITIONS, MOVES, DELETIONS),
    rules=(
        topic_created,
        topic_configs_set,
        topic_deleted,
        orphans_found,
        topic_purged,
        partition_changed,
        partition_move_begun,
        partition_move_cancelled,
    ),
    check=_check,
)
