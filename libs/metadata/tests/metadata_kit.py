"""Shared test code: a log that validates the image after each batch, short constructors of records, contents
of views.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.registry import SCHEMAS
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAMS
from ponor_metadata.tables.ranges import StreamPiece, encode_ranges
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import ClusterOrdinal, NodeId, ObjectId, StreamId, compose_id, compose_node_id

ORDINAL = ClusterOrdinal(7)
NODE_A = compose_node_id(ORDINAL, 1)
NODE_B = compose_node_id(ORDINAL, 2)
GC_NODE = compose_node_id(ORDINAL, 9)
COMPACTOR = compose_node_id(ORDINAL, 11)
TTL_MS = 1_000


def stream(number: int) -> StreamId:
    return StreamId(compose_id(ORDINAL, number))


def obj(number: int) -> ObjectId:
    return ObjectId(compose_id(ORDINAL, number))


def record(**kind: Any) -> pb.Record:
    return pb.Record(**kind)


def formatted() -> pb.Record:
    return record(
        cluster_formatted=pb.ClusterFormatted(cluster_id="c-1", cluster_ordinal=ORDINAL, namespace="ns-1")
    )


def tenant(tenant_id: str = "", cluster_id: str = "kafka-1") -> pb.Record:
    return record(tenant_created=pb.TenantCreated(tenant_id=tenant_id, cluster_id=cluster_id))


def registered(
    node_id: NodeId,
    node_epoch: int = 1,
    role: int = 1,
    wal: int = 0,
    listeners: Mapping[str, str] | None = None,
) -> pb.Record:
    return record(
        node_registered=pb.NodeRegistered(
            node_id=node_id,
            node_epoch=node_epoch,
            role=role,  # type: ignore[arg-type]
            incarnation=b"%016d" % node_epoch,
            kafka_host="127.0.0.1",
            kafka_port=9092,
            wal=wal,  # type: ignore[arg-type]
            listeners=listeners or {},
        )
    )


def fenced(node_id: NodeId, node_epoch: int = 1) -> pb.Record:
    return record(node_fenced=pb.NodeFenced(node_id=node_id, node_epoch=node_epoch))


def drain_set(node_id: NodeId, node_epoch: int = 1, *, draining: bool = True) -> pb.Record:
    return record(node_drain_set=pb.NodeDrainSet(node_id=node_id, node_epoch=node_epoch, draining=draining))


def created(stream_id: StreamId, **tags: str) -> pb.Record:
    return record(stream_created=pb.StreamCreated(stream_id=stream_id, tags=tags))


def opened(stream_id: StreamId, epoch: int, node_id: NodeId = NODE_A, node_epoch: int = 1) -> pb.Record:
    return record(
        stream_opened=pb.StreamOpened(
            stream_id=stream_id, stream_epoch=epoch, node_id=node_id, node_epoch=node_epoch
        )
    )


def closed(stream_id: StreamId, epoch: int) -> pb.Record:
    return record(stream_closed=pb.StreamClosed(stream_id=stream_id, stream_epoch=epoch))


def trimmed(stream_id: StreamId, start: int) -> pb.Record:
    return record(stream_trimmed=pb.StreamTrimmed(stream_id=stream_id, start_offset=start))


def reclaimed(*stream_ids: StreamId) -> pb.Record:
    return record(streams_reclaimed=pb.StreamsReclaimed(stream_ids=stream_ids))


def prepared(
    first: ObjectId, count: int, node_id: NodeId = NODE_A, node_epoch: int = 1, expires_at_ms: int = TTL_MS
) -> pb.Record:
    return record(
        objects_prepared=pb.ObjectsPrepared(
            first_object_id=first,
            count=count,
            node_id=node_id,
            node_epoch=node_epoch,
            expires_at_ms=expires_at_ms,
            namespace="ns-1",
        )
    )


def so(object_id: ObjectId, stream_id: StreamId, start: int, end: int) -> pb.Record:
    return record(
        stream_object_committed=pb.StreamObjectCommitted(
            object_id=object_id, size_bytes=10, stream_id=stream_id, start_offset=start, end_offset=end
        )
    )


def sso(object_id: ObjectId, *pieces: tuple[StreamId, int, int], node_id: NodeId = NODE_A) -> pb.Record:
    packed = encode_ranges(StreamPiece(*piece) for piece in sorted(pieces))
    return record(
        stream_set_object_committed=pb.StreamSetObjectCommitted(
            object_id=object_id, size_bytes=10, node_id=node_id, packed_ranges=packed
        )
    )


def destroyed(*object_ids: ObjectId, at_ms: int = 0) -> pb.Record:
    return record(objects_destroyed=pb.ObjectsDestroyed(object_ids=object_ids, destroyed_at_ms=at_ms))


def claimed(*object_ids: ObjectId, until_ms: int = 10_000, node_id: NodeId = GC_NODE) -> pb.Record:
    return record(
        objects_claimed=pb.ObjectsClaimed(
            object_ids=object_ids, node_id=node_id, node_epoch=1, claimed_until_ms=until_ms
        )
    )


def removed(*object_ids: ObjectId) -> pb.Record:
    return record(objects_removed=pb.ObjectsRemoved(object_ids=object_ids))


def topic_created(topic_id: bytes, name: str, tenant_id: str = "") -> pb.Record:
    return record(
        topic_created=pb.TopicCreated(
            topic_id=topic_id, name=name, tenant_id=tenant_id, replication_factor=-1
        )
    )


def partition_changed(topic_id: bytes, number: int, leader: NodeId = NODE_A, epoch: int = 0) -> pb.Record:
    return record(
        partition_changed=pb.PartitionChanged(
            topic_id=topic_id, partition=number, leader_id=leader, leader_epoch=epoch, replicas=[leader]
        )
    )


def move_begun(topic_id: bytes, number: int, source: NodeId = NODE_A, target: NodeId = NODE_B) -> pb.Record:
    return record(
        partition_move_begun=pb.PartitionMoveBegun(
            topic_id=topic_id,
            partition=number,
            source_id=source,
            target_id=target,
            begun_at_ms=5,
            elect_at_ms=10_005,
            cause=pb.MOVE_CAUSE_REQUEST,
            reason="asked for",
            traceparent="00-1-2-01",
        )
    )


def move_cancelled(topic_id: bytes, number: int) -> pb.Record:
    return record(
        partition_move_cancelled=pb.PartitionMoveCancelled(topic_id=topic_id, partition=number, reason="no")
    )


def wal_opened(node_id: NodeId = NODE_A, wal_epoch: int = 1) -> pb.Record:
    return record(wal_opened=pb.WalOpened(node_id=node_id, wal_epoch=wal_epoch))


def wal_trimmed(trim_sequence: int, node_id: NodeId = NODE_A, wal_epoch: int = 1) -> pb.Record:
    return record(
        wal_trimmed=pb.WalTrimmed(node_id=node_id, wal_epoch=wal_epoch, trim_sequence=trim_sequence)
    )


def wal_assigned(
    recoverer_id: NodeId,
    token: int = 1,
    *,
    recoverer_epoch: int = 1,
    node_id: NodeId = NODE_A,
    wal_epoch: int = 1,
) -> pb.Record:
    return record(
        wal_recovery_assigned=pb.WalRecoveryAssigned(
            node_id=node_id,
            wal_epoch=wal_epoch,
            recoverer_id=recoverer_id,
            recoverer_epoch=recoverer_epoch,
            token=token,
        )
    )


def wal_closed(end_sequence: int = 0, node_id: NodeId = NODE_A, wal_epoch: int = 1) -> pb.Record:
    return record(wal_closed=pb.WalClosed(node_id=node_id, wal_epoch=wal_epoch, end_sequence=end_sequence))


def compaction_leased(
    task_id: int,
    *source_ids: ObjectId,
    token: int = 1,
    kind: int = 1,
    node_id: int = NODE_A,
    stream_id: int = -1,
    worker_id: NodeId = COMPACTOR,
    worker_epoch: int = 1,
    until_ms: int = TTL_MS,
) -> pb.Record:
    return record(
        compaction_leased=pb.CompactionLeased(
            task_id=task_id,
            kind=kind,  # type: ignore[arg-type]
            node_id=node_id,
            stream_id=stream_id,
            source_ids=source_ids,
            worker_id=worker_id,
            worker_epoch=worker_epoch,
            token=token,
            leased_until_ms=until_ms,
        )
    )


def compaction_renewed(task_id: int, until_ms: int) -> pb.Record:
    return record(compaction_renewed=pb.CompactionRenewed(task_id=task_id, leased_until_ms=until_ms))


def compaction_ended(task_id: int) -> pb.Record:
    return record(compaction_ended=pb.CompactionEnded(task_id=task_id))


def snapshot_leased(lease_id: int, index: int, begun_at_ms: int, until_ms: int = 1 << 40) -> pb.Record:
    return record(
        snapshot_leased=pb.SnapshotLeased(
            lease_id=lease_id,
            holder="a reader",
            index=index,
            begun_at_ms=begun_at_ms,
            leased_until_ms=until_ms,
        )
    )


def snapshot_renewed(lease_id: int, until_ms: int) -> pb.Record:
    return record(snapshot_renewed=pb.SnapshotRenewed(lease_id=lease_id, leased_until_ms=until_ms))


def snapshot_released(lease_id: int) -> pb.Record:
    return record(snapshot_released=pb.SnapshotReleased(lease_id=lease_id))


def scram_credential_set(user: str, mechanism: int = 1, tenant_id: str = "") -> pb.Record:
    key = b"k" * (32 if mechanism == 1 else 64)
    return record(
        scram_credential_set=pb.ScramCredentialSet(
            tenant_id=tenant_id,
            user=user,
            mechanism=mechanism,  # type: ignore[arg-type]
            salt=b"salt",
            stored_key=key,
            server_key=key,
            iterations=4_096,
        )
    )


def scram_credential_removed(user: str, mechanism: int = 1) -> pb.Record:
    removed = pb.ScramCredentialRemoved(user=user, mechanism=mechanism)  # type: ignore[arg-type]
    return record(scram_credential_removed=removed)


def acl_rule(name: str = "orders", operation: int = 3, tenant_id: str = "") -> pb.AclRule:
    return pb.AclRule(
        tenant_id=tenant_id,
        resource_type=2,
        pattern_type=3,
        name=name,
        principal="User:alice",
        host="*",
        operation=operation,
        permission=3,
    )


def acl_created(rule: pb.AclRule) -> pb.Record:
    return record(acl_created=pb.AclCreated(rule=rule))


def topic_configs_set(topic_id: bytes, **configs: str) -> pb.Record:
    return record(topic_configs_set=pb.TopicConfigsSet(topic_id=topic_id, configs=configs))


def broker_configs_set(node_id: NodeId, **configs: str) -> pb.Record:
    return record(broker_configs_set=pb.BrokerConfigsSet(node_id=node_id, configs=configs))


def group_configs_set(group_id: str, **configs: str) -> pb.Record:
    body = pb.GroupConfigsSet(group_id=group_id, configs=configs)
    return record(group_configs_set=body)


def completed(
    request_id: int, *, first_incomplete_id: int = 1, node_id: NodeId = NODE_A, node_epoch: int = 1
) -> pb.Record:
    return record(
        operation_completed=pb.OperationCompleted(
            node_id=node_id,
            node_epoch=node_epoch,
            first_incomplete_id=first_incomplete_id,
            request_id=request_id,
            digest=b"12345678",
            result=b"result %d" % request_id,
        )
    )


def batch_of(records: Iterable[pb.Record], index: int, cluster_time_ms: int) -> pb.RecordBatch:
    return pb.RecordBatch(index=index, term=1, cluster_time_ms=cluster_time_ms, records=records)


class Log:
    """Committed batches and their image, which is validated after every batch."""

    def __init__(self, *, nodes: Iterable[NodeId] = (NODE_A, NODE_B)) -> None:
        self.image = MetadataImage()
        self.encoded: list[bytes] = []
        self.commit(formatted(), tenant())
        for node_id in nodes:
            self.commit(registered(node_id))

    def commit(self, *records: pb.Record, at_ms: int | None = None) -> pb.RecordBatch:
        now_ms = self.image.cluster_time_ms + 1 if at_ms is None else at_ms
        batch = batch_of(records, self.image.index + 1, now_ms)
        encoded = batch.SerializeToString(deterministic=True)
        self.image.apply_committed(encoded)
        validate(self.image)
        self.encoded.append(encoded)
        return batch


def contents(view: View) -> dict[str, list[Any]]:
    """Return every row of every table, for comparison."""
    return {schema.name: list(view[schema]) for schema in SCHEMAS}


def dead_objects(view: View, new_starts: Mapping[StreamId, int | None]) -> list[ObjectId]:
    """Return objects without live offsets after the streams get these starts (None: deleted), by a scan."""

    def live(stream_id: StreamId, end: int) -> bool:
        row = view[STREAMS].get(stream_id)
        start = None if row is None else new_starts.get(stream_id, row.start_offset)
        return start is not None and end > start

    dead = [row.object_id for row in view[STREAM_OBJECTS] if not live(row.stream_id, row.end_offset)]
    for row in view[STREAM_SET_OBJECTS]:
        if not any(live(piece.stream_id, piece.end_offset) for piece in row.ranges.decoded):
            dead.append(row.object_id)
    return dead
