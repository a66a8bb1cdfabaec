"""Rules of apply for everything that holds no data: cluster, features, tenants, nodes, keys, topics, partitions, results."""

from __future__ import annotations

from itertools import takewhile

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import CLUSTER_ORDINAL_MAX, ClusterOrdinal, NodeEpoch, NodeId, TenantId

from ponor_metadata import counters
from ponor_metadata.epochs import epoch_floor
from ponor_metadata.rows import (
    ALL_BROKERS,
    NO_EPOCH,
    BrokerConfigsRow,
    ClusterRow,
    DeletionRow,
    FeatureRow,
    KeyRow,
    NodeRole,
    NodeRow,
    OperationRow,
    PartitionRow,
    TenantRow,
    TopicRow,
    WalKind,
)
from ponor_metadata.tables import OPERATIONS_OF, PARTITIONS_OF, STREAMS_OF_TOPIC, TOPICS_NAMED
from ponor_metadata.view import View, cluster_of

NODE_ID_LIMIT = 1 << 30
TOPIC_ID_BYTES = 16
FLOOR_STEP_MAX = 4_096
"""Ids below a risen floor are tried one by one up to this many: more than any session has in flight. A longer step walks over what is kept."""


def cluster_formatted(view: View, record: records.ClusterFormatted) -> None:
    """The first record of every log; only batches without records, which open terms of leadership, can be before it."""
    assert len(view.clusters) == 0, "the cluster was formatted before"
    assert 1 <= record.cluster_ordinal <= CLUSTER_ORDINAL_MAX, f"cluster ordinal {record.cluster_ordinal}"
    view.clusters.put(ClusterRow(record.cluster_id, ClusterOrdinal(record.cluster_ordinal), record.namespace))


def feature_level_set(view: View, record: records.FeatureLevelSet) -> None:
    """Levels only rise."""
    present = view.features.get(record.name)
    assert present is None or record.level > present.level, f"feature {record.name} would fall"
    view.features.put(FeatureRow(record.name, record.level))


def tenant_created(view: View, record: records.TenantCreated) -> None:
    """A tenant's cluster.id never changes."""
    tenant_id = TenantId(record.tenant_id)
    assert tenant_id not in view.tenants, f"tenant {tenant_id!r} exists"
    view.tenants.put(TenantRow(tenant_id, record.cluster_id))


def cluster_stop_announced(view: View, record: records.ClusterStopAnnounced) -> None:
    """A later announcement replaces an earlier one; it ends by the cluster clock, without a record."""
    cluster = cluster_of(view)
    assert cluster is not None, "the first record must be ClusterFormatted"
    assert record.until_ms >= 0, f"a stop until {record.until_ms}"
    view.clusters.put(cluster._replace(stop_until_ms=record.until_ms))


def balancer_paused(view: View, record: records.BalancerPaused) -> None:
    """Whether the balancer keeps still."""
    cluster = cluster_of(view)
    assert cluster is not None, "the first record must be ClusterFormatted"
    view.clusters.put(cluster._replace(balancer_paused=record.paused))


def node_registered(view: View, record: records.NodeRegistered) -> None:
    """A newer process takes the node id; the results of the older one die with its epoch."""
    node_id = NodeId(record.node_id)
    present = view.nodes.get(node_id)
    before = NO_EPOCH if present is None else present.node_epoch
    assert 0 <= node_id < NODE_ID_LIMIT, f"node id {node_id} is not below 2^30"
    assert record.node_epoch > before, f"node {node_id}: epoch {record.node_epoch} is not above {before}"
    assert record.node_epoch >= epoch_floor(view), (
        f"node {node_id}: epoch {record.node_epoch} is of an earlier incarnation"
    )
    for operation in list(view.operations.find(OPERATIONS_OF, node_id)):
        view.operations.delete((node_id, operation.request_id))
    view.nodes.put(
        NodeRow(
            node_id=node_id,
            node_epoch=NodeEpoch(record.node_epoch),
            role=NodeRole(record.role),
            incarnation=record.incarnation,
            kafka_host=record.kafka_host,
            kafka_port=record.kafka_port,
            registered_at_ms=record.registered_at_ms,
            fenced=False,
            first_incomplete_id=0,
            wal=WalKind(record.wal or WalKind.FILE),
            draining=False,
        )
    )


def node_fenced(view: View, record: records.NodeFenced) -> None:
    """Only the newest epoch can be fenced: older ones are by being older. What is fenced does not drain any more."""
    node = view.nodes.get(NodeId(record.node_id))
    assert node is not None, f"node {record.node_id} is unknown"
    assert node.node_epoch == record.node_epoch, f"node {record.node_id} is at epoch {node.node_epoch}"
    view.nodes.put(node._replace(fenced=True, draining=False))


def node_unregistered(view: View, record: records.NodeUnregistered) -> None:
    """The node has no role any more. Its row stays with its epoch: objects and streams bear epochs of a node id, so they never begin again."""
    node = view.nodes.get(NodeId(record.node_id))
    assert node is not None, f"node {record.node_id} is unknown"
    assert node.node_epoch == record.node_epoch, f"node {record.node_id} is at epoch {node.node_epoch}"
    assert node.fenced, f"node {record.node_id} has its rights"
    view.nodes.put(node._replace(role=NodeRole.NONE, kafka_host="", kafka_port=0, wal=WalKind.FILE))


def key_put(view: View, record: records.KeyPut) -> None:
    """Insert or replace."""
    view.keys.put(KeyRow(record.key, record.value))


def key_deleted(view: View, record: records.KeyDeleted) -> None:
    """The key must be there."""
    assert record.key in view.keys, f"key {record.key!r} does not exist"
    view.keys.delete(record.key)


def topic_created(view: View, record: records.TopicCreated) -> None:
    """Unique by id and by (tenant, name)."""
    tenant_id = TenantId(record.tenant_id)
    assert len(record.topic_id) == TOPIC_ID_BYTES, "a topic id is a UUID of 16 bytes"
    assert record.topic_id not in view.topics, f"topic {record.topic_id.hex()} exists"
    assert tenant_id in view.tenants, f"tenant {tenant_id!r} does not exist"
    assert not view.topics.find(TOPICS_NAMED, (tenant_id, record.name)), f"topic {record.name!r} exists"
    view.topics.put(
        TopicRow(record.topic_id, tenant_id, record.name, record.replication_factor, dict(record.configs))
    )


def topic_configs_set(view: View, record: records.TopicConfigsSet) -> None:
    """The record names all of the topic's settings, not the change."""
    topic = view.topics.get(record.topic_id)
    assert topic is not None, f"topic {record.topic_id.hex()} does not exist"
    view.topics.put(topic._replace(configs=dict(record.configs)))


def broker_configs_set(view: View, record: records.BrokerConfigsSet) -> None:
    """The record names all of the settings; the row goes with the last of them."""
    node_id = NodeId(record.node_id)
    assert node_id == ALL_BROKERS or node_id in view.nodes, f"node {node_id} is unknown"
    if record.configs:
        view.broker_configs.put(BrokerConfigsRow(node_id, dict(record.configs)))
    else:
        assert node_id in view.broker_configs, f"node {node_id} has no dynamic settings to forget"
        view.broker_configs.delete(node_id)


def topic_deleted(view: View, record: records.TopicDeleted) -> None:
    """Its partitions go with it; its streams and keys do later."""
    topic = view.topics.get(record.topic_id)
    assert topic is not None, f"topic {record.topic_id.hex()} does not exist"
    for partition in list(view.partitions.find(PARTITIONS_OF, record.topic_id)):
        key = (record.topic_id, partition.partition)
        view.partitions.delete(key)
        if key in view.moves:
            view.moves.delete(key)
    view.topics.delete(record.topic_id)
    view.deletions.put(DeletionRow(record.topic_id, topic.name, view.cluster_time_ms))


def orphans_found(view: View, record: records.OrphansFound) -> None:
    """Streams or keys name a topic that does not exist; they go as those of a deleted one."""
    topic_id = record.topic_id
    assert len(topic_id) == TOPIC_ID_BYTES, "a topic id is a UUID of 16 bytes"
    assert topic_id not in view.topics, f"topic {topic_id.hex()} exists"
    assert topic_id not in view.deletions, f"topic {topic_id.hex()} is being deleted"
    view.deletions.put(DeletionRow(topic_id, "", view.cluster_time_ms))


def topic_purged(view: View, record: records.TopicPurged) -> None:
    """Nothing names the topic any more. A stream that did could be found by nobody afterwards."""
    assert record.topic_id in view.deletions, f"topic {record.topic_id.hex()} was not deleted"
    left = next(iter(view.streams.find(STREAMS_OF_TOPIC, record.topic_id.hex())), None)
    assert left is None, f"topic {record.topic_id.hex()}: stream {left} is left"
    view.deletions.delete(record.topic_id)


def partition_changed(view: View, record: records.PartitionChanged) -> None:
    """The leader epoch never falls, and rises with every change of leader. A move of the partition is over with this."""
    # Each field of a record is read once: a topic is a thousand of these in one turn.
    topic_id, number = record.topic_id, record.partition
    leader_id, leader_epoch = NodeId(record.leader_id), record.leader_epoch
    key = (topic_id, number)
    assert topic_id in view.topics, f"topic {topic_id.hex()} does not exist"
    present = view.partitions.get(key)
    if present is None:
        # Partitions have no gaps, so one look at the neighbour below does. Counting them made a topic of n partitions cost n² steps.
        assert number == 0 or (topic_id, number - 1) in view.partitions, (
            f"partition {number} is made before {number - 1}"
        )
    else:
        rises = leader_epoch > present.leader_epoch
        same = (leader_epoch, leader_id) == (present.leader_epoch, present.leader_id)
        assert rises or same, f"leader epoch {present.leader_epoch} does not rise with a new leader"
    if present is None or leader_epoch != present.leader_epoch:
        assert leader_epoch >= epoch_floor(view), f"leader epoch {leader_epoch} is of an earlier incarnation"
    if key in view.moves:
        view.moves.delete(key)
    replicas = tuple(map(NodeId, record.replicas))
    view.partitions.put(PartitionRow(topic_id, number, leader_id, leader_epoch, replicas))


def producer_ids_allocated(view: View, record: records.ProducerIdsAllocated) -> None:
    """Who holds a block is of no interest later; that nobody gets it again is."""
    counters.take(view, counters.PRODUCER, record.first_producer_id, record.count)


def operation_completed(view: View, record: records.OperationCompleted) -> None:
    """Keep the result until its node says that it has it."""
    node_id, request_id = NodeId(record.node_id), record.request_id
    node, operations = view.nodes.get(node_id), view.operations
    assert node is not None, f"node {node_id} is unknown"
    is_stale = node.node_epoch != record.node_epoch or node.fenced
    assert not is_stale, f"node {node_id} epoch {record.node_epoch} is stale"
    known_floor = node.first_incomplete_id
    floor = max(known_floor, record.first_incomplete_id)
    assert request_id >= floor, f"request {request_id} is below {floor}: answered long ago"
    assert (node_id, request_id) not in operations, f"request {request_id} is repeated"
    if floor > known_floor:
        view.nodes.put(node._replace(first_incomplete_id=floor))
        _forget_results(view, node_id, known_floor, floor)
    operations.put(OperationRow(node_id, request_id, record.digest, record.result, view.index))


def _forget_results(view: View, node_id: NodeId, known_floor: int, floor: int) -> None:
    """Forget a node's results below `floor`; those below `known_floor` went when it rose to there."""
    operations = view.operations
    if floor - known_floor <= FLOOR_STEP_MAX:
        for below in range(known_floor, floor):
            try:  # noqa: SIM105 -- once for each operation, and `suppress` costs more than the rest
                operations.delete((node_id, below))
            except KeyError:
                pass  # refused operations have no result
        return
    kept = operations.find(OPERATIONS_OF, node_id)
    for below in [row.request_id for row in takewhile(lambda row: row.request_id < floor, kept)]:
        operations.delete((node_id, below))
