"""Rows as messages of image.proto, and back. One pair of functions per row class, and nothing else."""

from __future__ import annotations

from ponor.metadata.v1 import image_pb2, records_pb2
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
from ponor_metadata.rows import (
    BrokerConfigsRow,
    ClusterRow,
    CounterRow,
    FeatureRow,
    KeyRow,
    NodeRole,
    NodeRow,
    ObjectRow,
    ObjectState,
    OperationRow,
    PartitionRow,
    RangeRow,
    StreamObjectRow,
    StreamRow,
    StreamSetObjectRow,
    TenantRow,
    TopicRow,
)


def encode_cluster(row: ClusterRow) -> image_pb2.ClusterRow:
    """Row to message."""
    return image_pb2.ClusterRow(
        cluster_id=row.cluster_id, cluster_ordinal=row.cluster_ordinal, namespace=row.namespace
    )


def decode_cluster(message: image_pb2.ClusterRow) -> ClusterRow:
    """Message to row."""
    return ClusterRow(message.cluster_id, ClusterOrdinal(message.cluster_ordinal), message.namespace)


def encode_feature(row: FeatureRow) -> image_pb2.FeatureRow:
    """Row to message."""
    return image_pb2.FeatureRow(name=row.name, level=row.level)


def decode_feature(message: image_pb2.FeatureRow) -> FeatureRow:
    """Message to row."""
    return FeatureRow(message.name, message.level)


def encode_tenant(row: TenantRow) -> image_pb2.TenantRow:
    """Row to message."""
    return image_pb2.TenantRow(tenant_id=row.tenant_id, cluster_id=row.cluster_id)


def decode_tenant(message: image_pb2.TenantRow) -> TenantRow:
    """Message to row."""
    return TenantRow(TenantId(message.tenant_id), message.cluster_id)


def encode_counter(row: CounterRow) -> image_pb2.CounterRow:
    """Row to message."""
    return image_pb2.CounterRow(name=row.name, next_value=row.next_value)


def decode_counter(message: image_pb2.CounterRow) -> CounterRow:
    """Message to row."""
    return CounterRow(message.name, message.next_value)


def encode_node(row: NodeRow) -> image_pb2.NodeRow:
    """Row to message."""
    return image_pb2.NodeRow(
        node_id=row.node_id,
        node_epoch=row.node_epoch,
        role=records_pb2.NodeRole.ValueType(row.role),
        incarnation=row.incarnation,
        kafka_host=row.kafka_host,
        kafka_port=row.kafka_port,
        registered_at_ms=row.registered_at_ms,
        fenced=row.fenced,
        first_incomplete_id=row.first_incomplete_id,
    )


def decode_node(message: image_pb2.NodeRow) -> NodeRow:
    """Message to row."""
    return NodeRow(
        node_id=NodeId(message.node_id),
        node_epoch=NodeEpoch(message.node_epoch),
        role=NodeRole(message.role),
        incarnation=message.incarnation,
        kafka_host=message.kafka_host,
        kafka_port=message.kafka_port,
        registered_at_ms=message.registered_at_ms,
        fenced=message.fenced,
        first_incomplete_id=message.first_incomplete_id,
    )


def encode_stream(row: StreamRow) -> image_pb2.StreamRow:
    """Row to message."""
    return image_pb2.StreamRow(
        stream_id=row.stream_id,
        stream_epoch=row.stream_epoch,
        open=row.open,
        start_offset=row.start_offset,
        end_offset=row.end_offset,
        node_id=row.node_id,
        node_epoch=row.node_epoch,
        ranges=[
            image_pb2.RangeRow(
                stream_epoch=piece.stream_epoch,
                node_id=piece.node_id,
                start_offset=piece.start_offset,
                end_offset=piece.end_offset,
            )
            for piece in row.ranges
        ],
        tags=row.tags,
    )


def decode_stream(message: image_pb2.StreamRow) -> StreamRow:
    """Message to row."""
    return StreamRow(
        stream_id=StreamId(message.stream_id),
        stream_epoch=StreamEpoch(message.stream_epoch),
        open=message.open,
        start_offset=message.start_offset,
        end_offset=message.end_offset,
        node_id=NodeId(message.node_id),
        node_epoch=NodeEpoch(message.node_epoch),
        ranges=tuple(
            RangeRow(
                StreamEpoch(piece.stream_epoch), NodeId(piece.node_id), piece.start_offset, piece.end_offset
            )
            for piece in message.ranges
        ),
        tags=dict(message.tags),
    )


def encode_object(row: ObjectRow) -> image_pb2.ObjectRow:
    """Row to message."""
    return image_pb2.ObjectRow(
        object_id=row.object_id,
        state=image_pb2.ObjectState.ValueType(row.state),
        namespace=row.namespace,
        bucket_index=row.bucket_index,
        node_id=row.node_id,
        node_epoch=row.node_epoch,
        expires_at_ms=row.expires_at_ms,
        size_bytes=row.size_bytes,
        committed_at_ms=row.committed_at_ms,
        destroyed_at_ms=row.destroyed_at_ms,
        claim_node_id=row.claim_node_id,
        claim_node_epoch=row.claim_node_epoch,
        claimed_until_ms=row.claimed_until_ms,
    )


def decode_object(message: image_pb2.ObjectRow) -> ObjectRow:
    """Message to row."""
    return ObjectRow(
        object_id=ObjectId(message.object_id),
        state=ObjectState(message.state),
        namespace=message.namespace,
        bucket_index=message.bucket_index,
        node_id=NodeId(message.node_id),
        node_epoch=NodeEpoch(message.node_epoch),
        expires_at_ms=message.expires_at_ms,
        size_bytes=message.size_bytes,
        committed_at_ms=message.committed_at_ms,
        destroyed_at_ms=message.destroyed_at_ms,
        claim_node_id=NodeId(message.claim_node_id),
        claim_node_epoch=NodeEpoch(message.claim_node_epoch),
        claimed_until_ms=message.claimed_until_ms,
    )


def encode_stream_object(row: StreamObjectRow) -> image_pb2.StreamObjectRow:
    """Row to message."""
    return image_pb2.StreamObjectRow(
        object_id=row.object_id,
        stream_id=row.stream_id,
        start_offset=row.start_offset,
        end_offset=row.end_offset,
    )


def decode_stream_object(message: image_pb2.StreamObjectRow) -> StreamObjectRow:
    """Message to row."""
    return StreamObjectRow(
        ObjectId(message.object_id), StreamId(message.stream_id), message.start_offset, message.end_offset
    )


def encode_stream_set_object(row: StreamSetObjectRow) -> image_pb2.StreamSetObjectRow:
    """Row to message."""
    return image_pb2.StreamSetObjectRow(
        object_id=row.object_id,
        node_id=row.node_id,
        commit_order=row.commit_order,
        packed_ranges=row.ranges.data,
    )


def decode_stream_set_object(message: image_pb2.StreamSetObjectRow) -> StreamSetObjectRow:
    """Message to row."""
    return StreamSetObjectRow(
        ObjectId(message.object_id),
        NodeId(message.node_id),
        message.commit_order,
        PackedRanges(message.packed_ranges),
    )


def encode_key(row: KeyRow) -> image_pb2.KeyRow:
    """Row to message."""
    return image_pb2.KeyRow(key=row.key, value=row.value)


def decode_key(message: image_pb2.KeyRow) -> KeyRow:
    """Message to row."""
    return KeyRow(message.key, message.value)


def encode_topic(row: TopicRow) -> image_pb2.TopicRow:
    """Row to message."""
    return image_pb2.TopicRow(
        topic_id=row.topic_id,
        tenant_id=row.tenant_id,
        name=row.name,
        replication_factor=row.replication_factor,
        configs=row.configs,
    )


def decode_topic(message: image_pb2.TopicRow) -> TopicRow:
    """Message to row."""
    return TopicRow(
        message.topic_id,
        TenantId(message.tenant_id),
        message.name,
        message.replication_factor,
        dict(message.configs),
    )


def encode_partition(row: PartitionRow) -> image_pb2.PartitionRow:
    """Row to message."""
    return image_pb2.PartitionRow(
        topic_id=row.topic_id,
        partition=row.partition,
        leader_id=row.leader_id,
        leader_epoch=row.leader_epoch,
        replicas=row.replicas,
    )


def decode_partition(message: image_pb2.PartitionRow) -> PartitionRow:
    """Message to row."""
    return PartitionRow(
        message.topic_id,
        message.partition,
        NodeId(message.leader_id),
        message.leader_epoch,
        tuple(NodeId(replica) for replica in message.replicas),
    )


def encode_broker_configs(row: BrokerConfigsRow) -> image_pb2.BrokerConfigsRow:
    """Row to message."""
    return image_pb2.BrokerConfigsRow(node_id=row.node_id, configs=row.configs)


def decode_broker_configs(message: image_pb2.BrokerConfigsRow) -> BrokerConfigsRow:
    """Message to row."""
    return BrokerConfigsRow(NodeId(message.node_id), dict(message.configs))


def encode_operation(row: OperationRow) -> image_pb2.OperationRow:
    """Row to message."""
    return image_pb2.OperationRow(
        node_id=row.node_id,
        request_id=row.request_id,
        digest=row.digest,
        result=row.result,
        commit_index=row.commit_index,
    )


def decode_operation(message: image_pb2.OperationRow) -> OperationRow:
    """Message to row."""
    return OperationRow(
        NodeId(message.node_id), message.request_id, message.digest, message.result, message.commit_index
    )
