"""Topics: create and delete.

What lives here: Kafka's rules for a new topic, where its partitions go, and that nothing of a deleted topic stays. Streams belong to a topic by
their tags; the broker sets them when it makes a partition's streams.
"""

from __future__ import annotations

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.rows import NodeRole, TopicRow
from ponor_metadata.tables import PARTITIONS_OF, TOPICS_NAMED, TOPICS_OF_TENANT
from ponor_runtime.identity import NodeId, TenantId

from ponor_controller.validation.situation import Decision, Situation, refuse, require_role
from ponor_controller.validation.streams import delete_rows
from ponor_controller.validation.topic_configs import config_problem
from ponor_controller.validation.topic_names import collides, has_collision_characters, name_problem

TOPIC_TAG = "topic"
DEFAULT_COUNT = -1
REPLICATION_FACTOR_MAX = (1 << 15) - 1
FIRST_LEADER_EPOCH = 0
RESERVED_TOPIC_IDS = ((0).to_bytes(16, "big"), (1).to_bytes(16, "big"))
"""Kafka's ZERO_UUID and the id of its metadata topic."""


def create_topic(body: wire.CreateTopic, situation: Situation) -> Decision:
    """A topic with its partitions spread over the brokers."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    tenant_id = _require_tenant(body, situation)
    _check_name(body.name, tenant_id, situation)
    partitions = _partition_count(body, situation)
    if (
        body.replication_factor != DEFAULT_COUNT
        and not 1 <= body.replication_factor <= REPLICATION_FACTOR_MAX
    ):
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REPLICATION_FACTOR,
            f"replication factor {body.replication_factor} of topic {body.name!r}; give -1 or at least 1",
        )
    problem = config_problem(body.configs)
    if problem is not None:
        raise refuse(error_pb2.ERROR_CODE_INVALID_CONFIG, problem)
    brokers = _require_brokers(situation)
    held = wire.TopicHeld(partitions=partitions, replication_factor=body.replication_factor)
    if body.validate_only:
        return Decision(result=wire.OperationResult(topic_held=held))
    held.topic_id = _new_topic_id(situation)
    created = records_pb2.TopicCreated(
        topic_id=held.topic_id,
        tenant_id=tenant_id,
        name=body.name,
        replication_factor=body.replication_factor,
        configs=body.configs,
    )
    records = [records_pb2.Record(topic_created=created)]
    first = len(situation.view.topics) % len(brokers)  # small topics do not all begin at the same broker
    leaders = (brokers[(first + number) % len(brokers)] for number in range(partitions))
    records.extend(_new_partition(held.topic_id, number, leader) for number, leader in enumerate(leaders))
    return Decision(records, wire.OperationResult(topic_held=held))


def delete_topic(body: wire.DeleteTopic, situation: Situation) -> Decision:
    """The topic, its streams, their objects and its keys, in one batch."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    topic = situation.view.topics.get(body.topic_id)
    if topic is None:
        raise refuse(
            error_pb2.ERROR_CODE_TOPIC_NOT_FOUND,
            f"there is no topic with id {body.topic_id.hex()}; it was deleted already",
        )
    topic_hex = topic.topic_id.hex()
    streams = [row for row in situation.view.streams if row.tags.get(TOPIC_TAG) == topic_hex]
    decision = delete_rows(streams, situation)
    for partition in situation.view.partitions.find(PARTITIONS_OF, topic.topic_id):
        key = partition_key(topic, partition.partition)
        if key in situation.view.keys:
            decision.records.append(records_pb2.Record(key_deleted=records_pb2.KeyDeleted(key=key)))
    deleted = records_pb2.TopicDeleted(topic_id=topic.topic_id)
    decision.records.append(records_pb2.Record(topic_deleted=deleted))
    return decision


def partition_key(topic: TopicRow, partition: int) -> str:
    """The key under which a partition's meta stream is found."""
    return f"partition/{topic.topic_id.hex()}/{partition}"


def _require_tenant(body: wire.CreateTopic, situation: Situation) -> TenantId:
    tenant_id = TenantId(body.tenant_id)
    if tenant_id not in situation.view.tenants:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST, f"there is no tenant {body.tenant_id!r}; create it first"
        )
    return tenant_id


def _check_name(name: str, tenant_id: TenantId, situation: Situation) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise refuse(error_pb2.ERROR_CODE_INVALID_TOPIC, problem)
    topics = situation.view.topics
    if topics.find(TOPICS_NAMED, (tenant_id, name)):
        raise refuse(error_pb2.ERROR_CODE_TOPIC_EXISTS, f"topic {name!r} exists already")
    if not has_collision_characters(name):
        return
    for other in topics.find(TOPICS_OF_TENANT, tenant_id):
        if collides(name, other.name):
            raise refuse(
                error_pb2.ERROR_CODE_INVALID_TOPIC,
                f"topic name {name!r} collides with {other.name!r}: '.' and '_' are one character in metric names",
            )


def _partition_count(body: wire.CreateTopic, situation: Situation) -> int:
    settings = situation.settings
    partitions = settings.default_partitions if body.partitions == DEFAULT_COUNT else body.partitions
    if not 1 <= partitions <= settings.partitions_per_topic_max:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_PARTITIONS,
            f"{partitions} partitions for topic {body.name!r}; give 1 to {settings.partitions_per_topic_max}, or -1 for the default",
        )
    present = len(situation.view.partitions)
    if present + partitions > settings.partitions_max:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_PARTITIONS,
            f"the cluster has {present} partitions and takes at most {settings.partitions_max}; "
            "delete topics, or raise the setting partitions_max",
        )
    return partitions


def _require_brokers(situation: Situation) -> list[NodeId]:
    """Brokers for new partitions: registered, not fenced, and not silent, unless all are."""
    brokers = [row.node_id for row in situation.view.nodes if row.role is NodeRole.BROKER and not row.fenced]
    if not brokers:
        raise refuse(error_pb2.ERROR_CODE_NO_BROKER, "no broker is registered; start one and try again")
    return [node_id for node_id in brokers if not situation.is_suspected(node_id)] or brokers


def _new_topic_id(situation: Situation) -> bytes:
    while True:
        topic_id = situation.randomness.uuid().bytes
        if topic_id not in RESERVED_TOPIC_IDS and topic_id not in situation.view.topics:
            return topic_id


def _new_partition(topic_id: bytes, number: int, leader_id: NodeId) -> records_pb2.Record:
    changed = records_pb2.PartitionChanged(
        topic_id=topic_id,
        partition=number,
        leader_id=leader_id,
        leader_epoch=FIRST_LEADER_EPOCH,
        replicas=[leader_id],
    )
    return records_pb2.Record(partition_changed=changed)
