"""Descriptions of configs as DescribeConfigs and CreateTopics return them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ponor_kafka.configs.catalogue import BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS
from ponor_kafka.configs.definition import ConfigDefinition, ConfigType
from ponor_metadata.nouns.nodes import ALL_BROKERS

from ponor_broker.configs.sources import ConfigSources, Source, SourcedValue


class ConfigDescription(NamedTuple):
    """One config: value, source, synonyms, type, documentation. The value of a secret is None."""

    name: str
    value: str | None
    read_only: bool
    source: Source
    is_sensitive: bool
    synonyms: list[SourcedValue]
    type: ConfigType
    doc: str


class ConfigDescriptions:
    """Descriptions for topics, groups and this broker. `own` contains Ponor's settings of this broker, by
    name without the prefix `ponor.`.
    """

    def __init__(self, sources: ConfigSources, own: Mapping[str, str]) -> None:
        self._sources = sources
        self._own = own

    def of_topic(self, configs: Mapping[str, str]) -> Iterator[ConfigDescription]:
        """Yield every topic config, given the topic's own configs."""
        for definition in TOPIC_CONFIGS.values():
            if definition.unlisted and definition.name not in configs:
                continue
            synonyms = self._sources.of_topic(definition.name, configs)
            value = self._sources.topic_value(definition.name, configs)
            yield _described(definition, value, synonyms)

    def of_group(self, configs: Mapping[str, str]) -> Iterator[ConfigDescription]:
        """Yield every group config, given the group's own configs."""
        for definition in GROUP_CONFIGS.values():
            synonyms = self._sources.of_group(definition.name, configs)
            yield _described(definition, synonyms[0].value, synonyms)

    def of_broker(self) -> Iterator[ConfigDescription]:
        """Yield every config of this broker: Kafka's, then Ponor's."""
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
                doc="A setting of Ponor, fixed when the broker starts.",
            )

    def of_all_brokers(self) -> Iterator[ConfigDescription]:
        """Yield the configs that were set for all brokers."""
        for name, value in self._sources.dynamic(ALL_BROKERS).items():
            sourced = SourcedValue(name, value, Source.DYNAMIC_DEFAULT_BROKER)
            yield _described(BROKER_CONFIGS[name], value, [sourced])


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
