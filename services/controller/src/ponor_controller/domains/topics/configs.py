"""Operations that change the configs of topics, brokers and groups.

`ponor_kafka.configs` defines the configs and validates values. A record contains the resulting
values, so applying it needs no catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_kafka.configs.changes import (
    ChangeKind,
    ConfigChange,
    changed_broker_configs,
    changed_group_configs,
    changed_topic_configs,
)
from ponor_kafka.configs.definition import ConfigError
from ponor_metadata.nouns.cluster import TENANTS
from ponor_metadata.nouns.groups import GROUP_CONFIGS
from ponor_metadata.nouns.nodes import ALL_BROKERS, BROKER_CONFIGS, NODES, NodeRole
from ponor_metadata.nouns.topics import TOPICS
from ponor_runtime.identity import NodeId, TenantId

from ponor_controller.kernel.decisions import Decision, Situation, invalid, refuse, require_role

CHANGES_MAX: Final = 1_000
VALUE_BYTES_MAX: Final = 32_767
"""Maximum length of a string in older versions of Kafka's protocol."""
GROUPS_WITH_CONFIGS_MAX: Final = 10_000
"""Every broker keeps these rows in memory; a row with all configs has about 1 KiB."""
GROUP_ID_BYTES_MAX: Final = 1_024
_KINDS: Final = MappingProxyType(
    {
        wire.ConfigChange.KIND_SET: ChangeKind.SET,
        wire.ConfigChange.KIND_DELETE: ChangeKind.DELETE,
        wire.ConfigChange.KIND_APPEND: ChangeKind.APPEND,
        wire.ConfigChange.KIND_SUBTRACT: ChangeKind.SUBTRACT,
    }
)


def alter_topic_configs(body: wire.AlterTopicConfigs, situation: Situation) -> Decision:
    """Change the configs of a topic. Either all changes take effect or none."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    topic = situation.view[TOPICS].get(body.topic_id)
    if topic is None:
        raise refuse(error_pb2.ERROR_CODE_TOPIC_NOT_FOUND, f"there is no topic with id {body.topic_id.hex()}")
    try:
        after = changed_topic_configs(topic.configs, _changes(body.changes), replace=body.replace)
    except ConfigError as error:
        raise refuse(error_pb2.ERROR_CODE_INVALID_CONFIG, str(error)) from error
    check_sizes(after)
    if body.validate_only or after == topic.configs:
        return Decision()
    changed = records_pb2.TopicConfigsSet(topic_id=topic.topic_id, configs=after)
    return Decision([records_pb2.Record(topic_configs_set=changed)])


def alter_broker_configs(body: wire.AlterBrokerConfigs, situation: Situation) -> Decision:
    """Change the dynamic configs of one broker or of all."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    node_id = NodeId(body.node_id)
    if node_id != ALL_BROKERS:
        node = situation.view[NODES].get(node_id)
        if node is None or node.role is not NodeRole.BROKER:
            raise invalid(f"broker {node_id} is not registered")
    row = situation.view[BROKER_CONFIGS].get(node_id)
    present = {} if row is None else row.configs
    try:
        after = changed_broker_configs(
            present, _changes(body.changes), of_all_brokers=node_id == ALL_BROKERS, replace=body.replace
        )
    except ConfigError as error:
        raise invalid(str(error)) from error
    check_sizes(after)
    if body.validate_only or after == present:
        return Decision()
    changed = records_pb2.BrokerConfigsSet(node_id=node_id, configs=after)
    return Decision([records_pb2.Record(broker_configs_set=changed)])


def alter_group_configs(body: wire.AlterGroupConfigs, situation: Situation) -> Decision:
    """Change the dynamic configs of a group, which need not exist."""
    require_role(situation, records_pb2.NODE_ROLE_BROKER)
    tenant_id = TenantId(body.tenant_id)
    if tenant_id not in situation.view[TENANTS]:
        raise invalid(f"there is no tenant {body.tenant_id!r}; create it first")
    if not 0 < len(body.group_id.encode()) <= GROUP_ID_BYTES_MAX:
        raise invalid(f"a group with configs needs an id of 1 to {GROUP_ID_BYTES_MAX} bytes")
    row = situation.view[GROUP_CONFIGS].get((tenant_id, body.group_id))
    present = {} if row is None else row.configs
    try:
        after = changed_group_configs(present, _changes(body.changes), replace=body.replace)
    except ConfigError as error:
        raise refuse(error_pb2.ERROR_CODE_INVALID_CONFIG, str(error)) from error
    check_sizes(after)
    if body.validate_only or after == present:
        return Decision()
    if row is None and len(situation.view[GROUP_CONFIGS]) >= GROUPS_WITH_CONFIGS_MAX:
        raise invalid(
            f"{GROUPS_WITH_CONFIGS_MAX} groups have configs, which is the limit;"
            " remove the configs of groups that are not used"
        )
    changed = records_pb2.GroupConfigsSet(tenant_id=tenant_id, group_id=body.group_id, configs=after)
    return Decision([records_pb2.Record(group_configs_set=changed)])


def check_sizes(configs: Mapping[str, str]) -> None:
    """Bound the length of values, because repeated APPEND changes could make a list grow without limit.

    Raises:
        OperationError: INVALID_CONFIG.
    """
    for name, value in configs.items():
        if len(value.encode()) > VALUE_BYTES_MAX:
            raise refuse(
                error_pb2.ERROR_CODE_INVALID_CONFIG,
                f"the value of {name} would have {len(value.encode())} bytes; the limit is {VALUE_BYTES_MAX}",
            )


def _changes(changes: Iterable[wire.ConfigChange]) -> list[ConfigChange]:
    """Decode changes.

    Raises:
        OperationError: INVALID_REQUEST: an unknown kind, a config that occurs twice, or too many changes.
    """
    decoded: dict[str, ConfigChange] = {}
    for change in changes:
        kind = _KINDS.get(change.kind)
        if kind is None:
            raise invalid(f"a change of {change.name} has the unknown kind {change.kind}")
        if change.name in decoded:
            raise invalid(f"{change.name} is changed twice")
        decoded[change.name] = ConfigChange(change.name, kind, change.value)
    if len(decoded) > CHANGES_MAX:
        raise invalid(f"the request has {len(decoded)} changes; send at most {CHANGES_MAX}")
    return list(decoded.values())
