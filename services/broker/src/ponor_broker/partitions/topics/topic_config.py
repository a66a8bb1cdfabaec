"""Configs of topics that affect their partitions. A topic's own configs override the broker's dynamic ones,
which override the start configuration.

The controller checks names and values when they are set. `ponor_kafka.configs` lists which configs
have an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ponor_kafka.configs.catalogue import topic_values
from ponor_metadata.nouns.nodes import ALL_BROKERS, BROKER_CONFIGS, BrokerConfigsRow
from ponor_metadata.nouns.topics import TopicRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId

TIMESTAMP_UNBOUNDED = (1 << 63) - 1
UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Typed configs; `resolve` maps Kafka's names. Immutable: `Partition.apply_config` replaces the
    object.
    """

    message_bytes_max: int = 1_048_588
    timestamp_before_ms_max: int = TIMESTAMP_UNBOUNDED
    timestamp_after_ms_max: int = 3_600_000
    is_log_append_time: bool = False
    is_compacted: bool = False
    deletes_old: bool = True
    """cleanup.policy contains delete: retention applies."""
    retention_ms: int = 7 * 86_400_000
    """Age above which a segment is deleted; -1: never."""
    retention_bytes: int = UNLIMITED
    """Size of a partition above which its oldest segments are deleted; -1: no bound."""
    delete_retention_ms: int = 86_400_000
    """How long compaction keeps a tombstone."""
    min_cleanable_ratio: float = 0.5
    """Share of a compacted partition that must be uncleaned before it is cleaned."""
    min_compaction_lag_ms: int = 0
    """Age below which a record is not compacted."""
    max_compaction_lag_ms: int = (1 << 63) - 1
    """Age above which a record is compacted regardless of the ratio."""
    compression: str = "producer"
    """producer, uncompressed, gzip, snappy, lz4 or zstd."""
    gzip_level: int = -1
    lz4_level: int = 9
    zstd_level: int = 3
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000

    @property
    def plain_bytes_max(self) -> int:
        """Size up to which batches are stored unchanged, if their records comply with the other configs; -1:
        no batch is stored unchanged.
        """
        if self.is_log_append_time or self.compression != "producer":
            return -1
        return min(self.message_bytes_max, self.segment_bytes)

    @property
    def roll_ms(self) -> int:
        """Age above which a segment is closed. Compaction skips the active segment, so the maximum
        lag of compaction is a bound, too (KIP-354).
        """
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def compression_levels(self) -> tuple[int, int, int]:
        """Levels of gzip, lz4 and zstd."""
        return self.gzip_level, self.lz4_level, self.zstd_level

    def resolve(self, configs: Mapping[str, str]) -> TopicConfig:
        """Return these configs, overridden by a topic's own. If nothing differs, return the same object:
        thousands of topics share it.
        """
        changes: dict[str, int | float | bool | str] = {
            field: int(configs[name]) for name, field in WHOLE_NUMBERS.items() if name in configs
        }
        # Kafka's tests and the tests of this project need segments below 1 MiB
        if "internal.segment.bytes" in configs:
            changes["segment_bytes"] = int(configs["internal.segment.bytes"])
        if "min.cleanable.dirty.ratio" in configs:
            changes["min_cleanable_ratio"] = float(configs["min.cleanable.dirty.ratio"])
        if "message.timestamp.type" in configs:
            changes["is_log_append_time"] = configs["message.timestamp.type"] == "LogAppendTime"
        if "compression.type" in configs:
            changes["compression"] = configs["compression.type"]
        if "cleanup.policy" in configs:
            policies = [item.strip() for item in configs["cleanup.policy"].split(",")]
            changes["is_compacted"] = "compact" in policies
            changes["deletes_old"] = "delete" in policies
        if all(getattr(self, field) == value for field, value in changes.items()):
            return self
        return replace(self, **changes)  # type: ignore[arg-type]  # int, float, bool or str by field


WHOLE_NUMBERS: Mapping[str, str] = {
    "compression.gzip.level": "gzip_level",
    "compression.lz4.level": "lz4_level",
    "compression.zstd.level": "zstd_level",
    "delete.retention.ms": "delete_retention_ms",
    "max.compaction.lag.ms": "max_compaction_lag_ms",
    "max.message.bytes": "message_bytes_max",
    "min.compaction.lag.ms": "min_compaction_lag_ms",
    "message.timestamp.before.max.ms": "timestamp_before_ms_max",
    "message.timestamp.after.max.ms": "timestamp_after_ms_max",
    "retention.bytes": "retention_bytes",
    "retention.ms": "retention_ms",
    "segment.bytes": "segment_bytes",
    "segment.ms": "segment_ms",
}
"""Kafka's name and the field of each integer config."""


SHARED_MAX: Final = 1_024


class TopicConfigs:
    """Resolver for one broker. `image` is called at every look-up. Equal results are the same object, which
    thousands of topics without own configs share.
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
