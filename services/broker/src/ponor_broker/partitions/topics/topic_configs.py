"""Effective configs of topics: their own over the broker's dynamic ones over the start
configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ponor_kafka.configs.catalogue import topic_values
from ponor_metadata.nouns.nodes import ALL_BROKERS, BROKER_CONFIGS, BrokerConfigsRow
from ponor_metadata.nouns.topics import TopicRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId

from ponor_broker.partitions.topics.topic_config import TopicConfig

SHARED_MAX: Final = 1_024


class TopicConfigs:
    """Resolver for one broker. `image` is called at every look-up. Equal results are one object:
    thousands of topics without own configs share it.
    """

    def __init__(
        self, image: Callable[[], View], node_id: NodeId, static: Mapping[str, str] | None = None
    ) -> None:
        self._image = image
        self._node_id = node_id
        self._started_with = TopicConfig().resolve(topic_values(static or {}))
        self._dynamic: tuple[BrokerConfigsRow | None, BrokerConfigsRow | None] = (None, None)
        self._defaults = self._started_with
        self._shared: dict[TopicConfig, TopicConfig] = {}

    @property
    def static_defaults(self) -> TopicConfig:
        """Defaults from the start configuration."""
        return self._started_with

    def of(self, topic: TopicRow) -> TopicConfig:
        """Return the configs in force for a topic."""
        config = self._present_defaults().resolve(topic.configs)
        if len(self._shared) >= SHARED_MAX:
            self._shared.clear()
        return self._shared.setdefault(config, config)

    def _present_defaults(self) -> TopicConfig:
        rows = self._image()[BROKER_CONFIGS]
        dynamic = (rows.get(ALL_BROKERS), rows.get(self._node_id))
        if dynamic != self._dynamic:
            self._dynamic = dynamic
            values: dict[str, str] = {}
            for row in dynamic:
                values.update({} if row is None else row.configs)
            self._defaults = self._started_with.resolve(topic_values(values))
        return self._defaults
