"""Settings in the form of DescribeConfigs, which CreateTopics answers with too.

What lives here: one description per setting: value, source, synonyms, type, document. Values of secrets are never shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ponor_kafka.configs.catalogue import BROKER_CONFIGS, TOPIC_CONFIGS
from ponor_kafka.configs.definition import ConfigDefinition, ConfigType
from ponor_metadata.nouns.nodes import ALL_BROKERS
from ponor_runtime.identity import NodeId

from ponor_broker.configs.sources import ConfigSources, Source, SourcedValue


class ConfigDescription(NamedTuple):
    """One setting as clients are told of it."""

    name: str
    value: str | None
    read_only: bool
    source: Source
    is_sensitive: bool
    synonyms: list[SourcedValue]
    type: ConfigType
    doc: str


class ConfigDescriptions:
    """What can be said of topics and of this broker. `own` are Ponor's own settings of this broker, by their names without the prefix."""

    def __init__(self, sources: ConfigSources, own: Mapping[str, str]) -> None:
        self._sources = sources
        self._own = own

    def of_topic(self, configs: Mapping[str, str]) -> Iterator[ConfigDescription]:
        """Every topic setting, given the topic's own ones."""
        for definition in TOPIC_CONFIGS.values():
            if definition.unlisted and definition.name not in configs:
                continue
            synonyms = self._sources.of_topic(definition.name, configs)
            value = self._sources.topic_value(definition.name, configs)
            yield _described(definition, value, synonyms)

    def of_broker(self) -> Iterator[ConfigDescription]:
        """Every setting of this broker, Kafka's and then Ponor's."""
        for definition in BROKER_CONFIGS.values():
            synonyms = self._sources.of_broker(definition.name)
            if definition.unlisted and not any(each.source is not Source.DEFAULT for each in synonyms):
                continue
            yield _described(definition, synonyms[0].value if synonyms else definition.default, synonyms)
        for name, value in self._own.items():
            sourced = SourcedValue(f"ponor.{name}", value, Source.STATIC_BROKER)
            yield ConfigDescription(
                name=sourced.name,
                value=value,
                read_only=True,
                source=sourced.source,
                is_sensitive=False,
                synonyms=[sourced],
                type=ConfigType.STRING,
                doc="A setting of Ponor's own, chosen when the broker was started.",
            )

    def of_all_brokers(self) -> Iterator[ConfigDescription]:
        """What was set for all brokers, and nothing else."""
        return self._set_for(ALL_BROKERS, Source.DYNAMIC_DEFAULT_BROKER)

    def _set_for(self, node_id: NodeId, source: Source) -> Iterator[ConfigDescription]:
        for name, value in self._sources.dynamic(node_id).items():
            yield _described(BROKER_CONFIGS[name], value, [SourcedValue(name, value, source)])


def _described(
    definition: ConfigDefinition, value: str | None, synonyms: list[SourcedValue]
) -> ConfigDescription:
    hidden = definition.is_sensitive
    return ConfigDescription(
        name=definition.name,
        value=None if hidden else value,
        read_only=not definition.is_dynamic,
        source=synonyms[0].source if synonyms else Source.DEFAULT,
        is_sensitive=hidden,
        synonyms=[] if hidden else synonyms,
        type=definition.type,
        doc=definition.doc,
    )
