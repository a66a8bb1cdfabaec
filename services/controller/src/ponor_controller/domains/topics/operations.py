"""Operations on topics: create, delete, add partitions, with Kafka's rules; and blocks of producer ids.

The tags of a stream name its topic. The broker sets them when it creates the partition's streams.
`ponor_controller.domains.objects.topic_purge` deletes the streams and keys of deleted topics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_kafka.configs.changes import checked_topic_configs
from ponor_kafka.configs.definition import ConfigError
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import TENANTS
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_metadata.nouns.topics import (
    PARTITIONS,
    PARTITIONS_OF,
    TOPICS,
    TOPICS_NAMED,
    TOPICS_OF_TENANT,
    TopicRow,
    next_leader_epoch,
)
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId, TenantId

from ponor_controller.domains.topics.configs import check_sizes
from ponor_controller.kernel.decisions import (
    Decision,
    Situation,
    invalid,
    refuse,
    require_count,
    require_role,
)
from ponor_controller.shared_rules.placement import candidates, is_live, led_counts, spread

DEFAULT_COUNT = -1
REPLICATION_FACTOR_MAX = (1 << 15) - 1
RESERVED_TOPIC_IDS = ((0).to_bytes(16, "big"), (1).to_bytes(16, "big"))
"""Kafka's ZERO_UUID and the id of its metadata topic."""


def create_topic(body: wire.CreateTopic, situation: Situation) -> Decision:
    """Create a topic and spread its partitions over the brokers."""
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
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    configs = _checked_configs(body.configs)
    counts = _require_brokers(situation)
    held = wire.TopicHeld(partitions=partitions, replication_factor=body.replication_factor)
    if body.validate_only:
        return Decision(result=wire.OperationResult(topic_held=held))
    held.topic_id = _new_topic_id(situation)
    created = records_pb2.TopicCreated(
        topic_id=held.topic_id,
        tenant_id=tenant_id,
        name=body.name,
        replication_factor=body.replication_factor,
        configs=configs,
    )
    records = [records_pb2.Record(topic_created=created)]
    records.extend(_new_partitions(situation.view, held.topic_id, range(partitions), counts))
    return Decision(records, wire.OperationResult(topic_held=held))


def create_partitions(body: wire.CreatePartitions, situation: Situation) -> Decision:
    """Add partitions to a topic; existing partitions do not move."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    topic = _require_topic(body.topic_id, situation)
    present = len(situation.view[PARTITIONS].find(PARTITIONS_OF, topic.topic_id))
    if body.count <= present:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_PARTITIONS,
            f"Topic already has {present} partition(s)."
            if body.count == present
            else f"The topic {topic.name} currently has {present} partition(s); {body.count} would not be an"
            " increase.",
        )
    _check_partitions(topic.name, body.count, body.count - present, situation)
    counts = _require_brokers(situation)
    held = wire.TopicHeld(
        topic_id=topic.topic_id, partitions=body.count, replication_factor=topic.replication_factor
    )
    if body.validate_only:
        return Decision(result=wire.OperationResult(topic_held=held))
    records = _new_partitions(situation.view, topic.topic_id, range(present, body.count), counts)
    return Decision(records, wire.OperationResult(topic_held=held))


def delete_topic(body: wire.DeleteTopic, situation: Situation) -> Decision:
    """Delete the topic and its partitions. `ReclaimDuty` deletes its streams, their objects and its keys
    later.
    """
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    topic = _require_topic(body.topic_id, situation)
    deleted = records_pb2.TopicDeleted(topic_id=topic.topic_id)
    partitions = len(situation.view[PARTITIONS].find(PARTITIONS_OF, topic.topic_id))
    return Decision([records_pb2.Record(topic_deleted=deleted)], rows=partitions)


def _require_topic(topic_id: bytes, situation: Situation) -> TopicRow:
    topic = situation.view[TOPICS].get(topic_id)
    if topic is None:
        raise refuse(
            error_pb2.ERROR_CODE_TOPIC_NOT_FOUND,
            f"there is no topic with id {topic_id.hex()}; it was deleted already",
        )
    return topic


def _require_tenant(body: wire.CreateTopic, situation: Situation) -> TenantId:
    tenant_id = TenantId(body.tenant_id)
    if tenant_id not in situation.view[TENANTS]:
        raise invalid(f"there is no tenant {body.tenant_id!r}; create it first")
    return tenant_id


def _check_name(name: str, tenant_id: TenantId, situation: Situation) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise refuse(error_pb2.ERROR_CODE_INVALID_TOPIC, problem)
    topics = situation.view[TOPICS]
    if topics.find(TOPICS_NAMED, (tenant_id, name)):
        raise refuse(error_pb2.ERROR_CODE_TOPIC_EXISTS, f"Topic '{name}' already exists.")
    if not has_collision_characters(name):
        return
    for other in topics.find(TOPICS_OF_TENANT, tenant_id):
        if collides(name, other.name):
            raise refuse(
                error_pb2.ERROR_CODE_INVALID_TOPIC,
                f"Topic '{name}' collides with existing topic: {other.name}",
            )


def _partition_count(body: wire.CreateTopic, situation: Situation) -> int:
    partitions = (
        situation.settings.default_partitions if body.partitions == DEFAULT_COUNT else body.partitions
    )
    if partitions < 1:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    _check_partitions(body.name, partitions, partitions, situation)
    return partitions


def _check_partitions(name: str, partitions: int, new: int, situation: Situation) -> None:
    """Check the bounds of a topic and of the cluster."""
    settings = situation.settings
    if partitions > settings.partitions_per_topic_max:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_PARTITIONS,
            f"topic {name!r} would have {partitions} partitions; the limit is"
            f" {settings.partitions_per_topic_max}",
        )
    present = len(situation.view[PARTITIONS])
    if present + new > settings.partitions_max:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_PARTITIONS,
            f"the cluster has {present} partitions, and {new} more would exceed the limit of"
            f" {settings.partitions_max}; delete topics, or raise the setting partitions_max",
        )


def _checked_configs(configs: Mapping[str, str]) -> dict[str, str]:
    try:
        checked = checked_topic_configs(configs)
    except ConfigError as error:
        raise refuse(error_pb2.ERROR_CODE_INVALID_CONFIG, str(error)) from error
    check_sizes(checked)
    return checked


def _require_brokers(situation: Situation) -> dict[NodeId, int]:
    """Return the brokers for new partitions, with the number of partitions that each leads.

    Return the candidates of `placement`. If there are none, return live draining brokers; if there are none
    of these either, return suspected brokers.
    """
    view, is_suspected = situation.view, situation.is_suspected
    known = [row for row in view[NODES] if row.role is NodeRole.BROKER and not row.fenced]
    if not known:
        raise refuse(error_pb2.ERROR_CODE_NO_BROKER, "no broker is registered; start one and try again")
    brokers = (
        candidates(view, is_suspected)
        or [row.node_id for row in known if is_live(row, is_suspected)]
        or [row.node_id for row in known]
    )
    return led_counts(view, brokers)


def _new_topic_id(situation: Situation) -> bytes:
    while True:
        topic_id = situation.randomness.uuid().bytes
        if topic_id not in RESERVED_TOPIC_IDS and topic_id not in situation.view[TOPICS]:
            return topic_id


def _new_partitions(
    view: View, topic_id: bytes, numbers: Sequence[int], counts: Mapping[NodeId, int]
) -> list[records_pb2.Record]:
    """Records of new partitions, placed round-robin from the broker that leads the fewest."""
    leaders = spread(counts, len(numbers))
    leader_epoch = next_leader_epoch(view, None)
    return [
        _new_partition(topic_id, number, leader_id, leader_epoch)
        for number, leader_id in zip(numbers, leaders, strict=True)
    ]


def _new_partition(topic_id: bytes, number: int, leader_id: NodeId, leader_epoch: int) -> records_pb2.Record:
    record = records_pb2.Record()
    changed = record.partition_changed  # filled in place, because protobuf would copy a separate message
    changed.topic_id = topic_id
    changed.partition = number
    changed.leader_id = leader_id
    changed.leader_epoch = leader_epoch
    changed.replicas.append(leader_id)
    return record


NAME_LENGTH_MAX = 249
LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """Return why a topic name is invalid, with Kafka's message text; None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length"
            f" {NAME_LENGTH_MAX}"
        )
    if LEGAL_NAME.fullmatch(name) is None:
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII"
            " alphanumerics, '.', '_' and '-'"
        )
    return None


def has_collision_characters(name: str) -> bool:
    """Whether the name contains a character because of which it could collide with another name."""
    return "." in name or "_" in name


def collides(name: str, other: str) -> bool:
    """Return whether two different topic names become the same metric name."""
    return name != other and name.replace(".", "_") == other.replace(".", "_")


def allocate_producer_ids(body: wire.AllocateProducerIds, situation: Situation) -> Decision:
    """Give the caller the next block of producer ids. Ids of the block that it does not use are lost."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    require_count(body.count, situation.settings.producer_ids_max, "producer ids")
    first = counters.next_value(situation.view, counters.PRODUCER)
    allocated = records_pb2.ProducerIdsAllocated(
        first_producer_id=first, count=body.count, node_id=situation.caller.node_id
    )
    granted = wire.ProducerIdsGranted(first_producer_id=first, count=body.count)
    return Decision(
        [records_pb2.Record(producer_ids_allocated=allocated)],
        wire.OperationResult(producer_ids_granted=granted),
    )
