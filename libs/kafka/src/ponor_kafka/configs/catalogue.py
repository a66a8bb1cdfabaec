"""Lookup of settings by name, and the broker settings that provide defaults of topic and group settings.

Source of the synonyms: org.apache.kafka.server.config.ServerTopicConfigSynonyms, and
org.apache.kafka.coordinator.group.GroupConfig.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

from ponor_kafka.configs.broker_cluster import BROKER_CLUSTER
from ponor_kafka.configs.broker_groups import BROKER_GROUPS
from ponor_kafka.configs.broker_log import BROKER_LOG
from ponor_kafka.configs.broker_network import BROKER_NETWORK
from ponor_kafka.configs.broker_remote import BROKER_REMOTE
from ponor_kafka.configs.broker_security import BROKER_SECURITY
from ponor_kafka.configs.broker_transactions import BROKER_TRANSACTIONS
from ponor_kafka.configs.definition import ConfigDefinition, Scope
from ponor_kafka.configs.group import GROUP
from ponor_kafka.configs.notation import read_definitions
from ponor_kafka.configs.topic import TOPIC

_BROKER_TEXTS: Final = (
    BROKER_CLUSTER,
    BROKER_GROUPS,
    BROKER_LOG,
    BROKER_NETWORK,
    BROKER_REMOTE,
    BROKER_SECURITY,
    BROKER_TRANSACTIONS,
)

TOPIC_CONFIGS: Final[Mapping[str, ConfigDefinition]] = MappingProxyType(
    {definition.name: definition for definition in read_definitions(TOPIC, Scope.TOPIC)}
)
"""Settings of a topic, sorted by name."""

GROUP_CONFIGS: Final[Mapping[str, ConfigDefinition]] = MappingProxyType(
    {definition.name: definition for definition in read_definitions(GROUP, Scope.GROUP)}
)
"""Settings of a group, sorted by name."""

BROKER_CONFIGS: Final[Mapping[str, ConfigDefinition]] = MappingProxyType(
    {
        definition.name: definition
        for definition in sorted(
            chain.from_iterable(read_definitions(text, Scope.READ_ONLY) for text in _BROKER_TEXTS),
            key=lambda definition: definition.name,
        )
    }
)
"""Settings of a broker, sorted by name."""


class Synonym(NamedTuple):
    """A broker setting whose value, multiplied by `factor`, is the default of another setting."""

    name: str
    factor: int = 1


_HOUR_MS: Final = 3_600_000
_MINUTE_MS: Final = 60_000

TOPIC_SYNONYMS: Final[Mapping[str, tuple[Synonym, ...]]] = MappingProxyType(
    {
        "cleanup.policy": (Synonym("log.cleanup.policy"),),
        "compression.gzip.level": (Synonym("compression.gzip.level"),),
        "compression.lz4.level": (Synonym("compression.lz4.level"),),
        "compression.type": (Synonym("compression.type"),),
        "compression.zstd.level": (Synonym("compression.zstd.level"),),
        "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
        "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
        "flush.messages": (Synonym("log.flush.interval.messages"),),
        "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
        "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
        "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
        "local.retention.ms": (Synonym("log.local.retention.ms"),),
        "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
        "max.message.bytes": (Synonym("message.max.bytes"),),
        "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
        "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
        "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
        "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
        "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
        "min.insync.replicas": (Synonym("min.insync.replicas"),),
        "preallocate": (Synonym("log.preallocate"),),
        "retention.bytes": (Synonym("log.retention.bytes"),),
        "retention.ms": (
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", _MINUTE_MS),
            Synonym("log.retention.hours", _HOUR_MS),
        ),
        "segment.bytes": (Synonym("log.segment.bytes"),),
        "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
        "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
        "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
        "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
    }
)
"""Broker settings that provide the default of a topic setting, by precedence."""

_BROKER_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        synonym.name: tuple(other.name for other in synonyms)
        for synonyms in TOPIC_SYNONYMS.values()
        for synonym in synonyms
    }
)


def broker_synonyms(name: str) -> tuple[str, ...]:
    """A broker setting and its synonyms in other units, by precedence."""
    return _BROKER_SYNONYMS.get(name, (name,))


GROUP_SYNONYMS: Final[Mapping[str, str]] = MappingProxyType(
    {name: f"group.{name}" for name in GROUP_CONFIGS if f"group.{name}" in BROKER_CONFIGS}
)
"""The broker setting that provides the default of a group setting. Some group settings have none."""


class GroupBound(NamedTuple):
    """A group setting, and the broker setting that is its lower or upper bound."""

    name: str
    bound: str
    is_lower: bool


def _group_bounds() -> Iterator[GroupBound]:
    for name in GROUP_CONFIGS:
        kind, _, rest = name.partition(".")
        for limit in ("min", "max"):
            bound = f"group.{kind}.{limit}.{rest.removeprefix('num.')}"
            if bound in BROKER_CONFIGS:
                yield GroupBound(name, bound, is_lower=limit == "min")


GROUP_BOUNDS: Final = tuple(_group_bounds())


def topic_values(broker_values: Mapping[str, str]) -> dict[str, str]:
    """Convert broker settings to the topic settings whose default they provide; ignores all others."""
    values: dict[str, str] = {}
    for name, synonyms in TOPIC_SYNONYMS.items():
        for synonym in synonyms:
            text = broker_values.get(synonym.name)
            if text is not None:
                values[name] = text if synonym.factor == 1 else _multiplied(text, synonym.factor)
                break
    return values


def _multiplied(text: str, factor: int) -> str:
    number = int(text)
    return str(number * factor) if number >= 0 else text  # -1 has the same meaning in every unit
