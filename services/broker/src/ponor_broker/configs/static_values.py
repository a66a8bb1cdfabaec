"""Kafka's broker configs that this broker was started with.

A value equal to Kafka's default is omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ponor_kafka.configs.catalogue import BROKER_CONFIGS
from ponor_runtime.identity import NodeId

from ponor_broker.settings import BrokerSettings

NUMBERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "add.partitions.to.txn.retry.backoff.max.ms": "transactions.transaction_add_retry_ms_max",
        "add.partitions.to.txn.retry.backoff.ms": "transactions.transaction_add_retry_ms",
        "connections.max.idle.ms": "connection_idle_ms_max",
        "fetch.max.bytes": "fetch_bytes_max",
        "group.consumer.assignment.interval.ms": "groups.group_consumer_assignment_interval_ms",
        "group.consumer.heartbeat.interval.ms": "groups.group_consumer_heartbeat_interval_ms",
        "group.consumer.max.size": "groups.group_consumer_members_max",
        "group.consumer.session.timeout.ms": "groups.group_consumer_session_timeout_ms",
        "group.initial.rebalance.delay.ms": "groups.group_initial_rebalance_delay_ms",
        "group.share.assignment.interval.ms": "groups.group_share_assignment_interval_ms",
        "group.share.heartbeat.interval.ms": "groups.group_share_heartbeat_interval_ms",
        "group.share.max.size": "groups.group_share_members_max",
        "group.share.session.timeout.ms": "groups.group_share_session_timeout_ms",
        "group.max.session.timeout.ms": "groups.group_max_session_timeout_ms",
        "group.max.size": "groups.group_members_max",
        "group.min.session.timeout.ms": "groups.group_min_session_timeout_ms",
        "group.share.delivery.count.limit": "share.group_share_delivery_count_limit",
        "group.share.max.share.sessions": "share.group_share_sessions_max",
        "group.share.partition.max.record.locks": "share.group_share_partition_max_record_locks",
        "group.share.record.lock.duration.ms": "share.group_share_record_lock_duration_ms",
        "group.streams.assignment.interval.ms": "groups.group_streams_assignment_interval_ms",
        "group.streams.heartbeat.interval.ms": "groups.group_streams_heartbeat_interval_ms",
        "group.streams.initial.rebalance.delay.ms": "groups.group_streams_initial_rebalance_delay_ms",
        "group.streams.max.size": "groups.group_streams_members_max",
        "group.streams.num.standby.replicas": "groups.group_streams_standby_replicas",
        "group.streams.session.timeout.ms": "groups.group_streams_session_timeout_ms",
        "log.message.timestamp.after.max.ms": "timestamp_after_ms_max",
        "log.roll.ms": "segment_ms",
        "log.segment.bytes": "segment_bytes",
        "max.connections": "connections_max",
        "max.incremental.fetch.session.cache.slots": "fetch_session_slots_max",
        "message.max.bytes": "message_bytes_max",
        "offset.metadata.max.bytes": "groups.offset_metadata_bytes_max",
        "offsets.commit.timeout.ms": "groups.coordinator_write_timeout_ms",
        "offsets.load.buffer.size": "groups.offsets_load_bytes_max",
        "offsets.retention.check.interval.ms": "groups.offsets_retention_check_interval_ms",
        "offsets.topic.num.partitions": "groups.offsets_topic_partitions",
        "producer.id.expiration.ms": "producer_expiration_ms",
        "socket.request.max.bytes": "request_bytes_max",
        "transaction.max.timeout.ms": "transactions.transaction_timeout_ms_max",
        "transaction.remove.expired.transaction.cleanup.interval.ms": (
            "transactions.transactional_id_expiry_interval_ms"
        ),
        "transaction.state.log.load.buffer.size": "transactions.transaction_load_bytes_max",
        "transaction.state.log.num.partitions": "transactions.transaction_topic_partitions",
        "transactional.id.expiration.ms": "transactions.transactional_id_expiration_ms",
    }
)
"""Setting by Kafka's name, for numbers in the same unit."""
_UNSET: Final = MappingProxyType({"log.roll.ms": str(7 * 86_400_000)})
"""Effective value of configs without a default in Kafka."""
_MINUTE_MS: Final = 60_000


def static_values(settings: BrokerSettings, node_id: NodeId, *, host: str, port: int) -> dict[str, str]:
    """Return Kafka's broker configs that differ from Kafka's defaults, and the broker's identity
    and addresses.
    """
    groups = settings.groups
    given = {name: str(_setting(settings, path)) for name, path in NUMBERS.items()}
    given["group.consumer.assignors"] = groups.group_consumer_assignors
    given["group.consumer.migration.policy"] = groups.group_consumer_migration_policy
    given["auto.create.topics.enable"] = str(settings.auto_create_topics).lower()
    given["offsets.retention.minutes"] = str(max(groups.offsets_retention_ms // _MINUTE_MS, 1))
    if settings.num_partitions > 0:
        given["num.partitions"] = str(settings.num_partitions)
    address = f"PLAINTEXT://{host}:{port}"
    return {
        "advertised.listeners": address,
        "broker.id": str(node_id),
        "listeners": address,
        "node.id": str(node_id),
        "process.roles": "broker",
        **{name: value for name, value in given.items() if value != _default(name)},
    }


def _default(name: str) -> str | None:
    default = BROKER_CONFIGS[name].default
    return _UNSET.get(name) if default is None else default


def _setting(settings: BrokerSettings, path: str) -> object:
    value: object = settings
    for field in path.split("."):
        value = getattr(value, field)
    return value
