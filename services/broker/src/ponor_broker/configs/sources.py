"""Sources of config values, in Kafka's order of precedence.

The order of sources and synonyms is that of `kafka.server.ConfigHelper`; the layers are the start
configuration and the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from itertools import dropwhile
from typing import NamedTuple

from ponor_kafka.configs.catalogue import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    GROUP_SYNONYMS,
    TOPIC_CONFIGS,
    TOPIC_SYNONYMS,
    broker_synonyms,
)
from ponor_metadata.nouns.nodes import ALL_BROKERS
from ponor_metadata.nouns.nodes import BROKER_CONFIGS as BROKER_CONFIGS_TABLE
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId


class Source(IntEnum):
    """Source numbers of DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


class SourcedValue(NamedTuple):
    """A value, the name under which it was set, and its source."""

    name: str
    value: str
    source: Source


class ConfigSources:
    """The config layers of one broker. `image` is called at every look-up."""

    def __init__(self, image: Callable[[], View], node_id: NodeId, static: Mapping[str, str]) -> None:
        self._image = image
        self._node_id = node_id
        self._static = static

    def dynamic(self, node_id: NodeId) -> Mapping[str, str]:
        """Return the configs that were set at run time, for one broker or for all."""
        row = self._image()[BROKER_CONFIGS_TABLE].get(node_id)
        return {} if row is None else row.configs

    def of_broker(self, name: str) -> list[SourcedValue]:
        """Return the values of a broker config under its name and its synonyms; the first one is in force."""
        names = broker_synonyms(name)
        found = (
            SourcedValue(each, value, source)
            for source, layer in self._layers()
            for each in names
            if (value := layer(each)) is not None
        )
        return list(dropwhile(lambda sourced: sourced.name != name, found))

    def of_topic(self, name: str, own: Mapping[str, str]) -> list[SourcedValue]:
        """Return the values of a topic config, given the topic's own configs."""
        found = [SourcedValue(name, own[name], Source.DYNAMIC_TOPIC)] if name in own else []
        synonyms = TOPIC_SYNONYMS.get(name)
        return found if synonyms is None else found + self.of_broker(synonyms[0].name)

    def of_group(self, name: str, own: Mapping[str, str]) -> list[SourcedValue]:
        """Return the values of a group config, given the group's own configs; the first one is in force."""
        found = [SourcedValue(name, own[name], Source.DYNAMIC_GROUP)] if name in own else []
        synonym = GROUP_SYNONYMS.get(name)
        if synonym is not None:
            return found + self.of_broker(synonym)
        return [*found, SourcedValue(name, GROUP_CONFIGS[name].default or "", Source.DEFAULT)]

    def topic_value(self, name: str, own: Mapping[str, str]) -> str | None:
        """Return the value in force for a topic. It may come from a synonym in another unit, which
        `of_topic` omits, as Kafka does.
        """
        if name in own:
            return own[name]
        for synonym in TOPIC_SYNONYMS.get(name, ()):
            for _, layer in self._layers():
                value = layer(synonym.name)
                if value is not None:
                    return value if synonym.factor == 1 else str(int(value) * synonym.factor)
        return TOPIC_CONFIGS[name].default

    def _layers(self) -> Iterator[tuple[Source, Callable[[str], str | None]]]:
        yield Source.DYNAMIC_BROKER, self.dynamic(self._node_id).get
        yield Source.DYNAMIC_DEFAULT_BROKER, self.dynamic(ALL_BROKERS).get
        yield Source.STATIC_BROKER, self._static.get
        yield Source.DEFAULT, _default


def _default(name: str) -> str | None:
    return BROKER_CONFIGS[name].default
