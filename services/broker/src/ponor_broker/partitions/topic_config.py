"""A topic's settings, as far as they have an effect on its partitions.

What lives here: the resolution of Kafka's topic settings over the broker's defaults. The controller has checked names and values when the
topic was made. A setting that is accepted without effect stands in docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

TIMESTAMP_UNBOUNDED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Kafka's names are in `resolve`."""

    message_bytes_max: int = 1_048_588
    timestamp_before_ms_max: int = TIMESTAMP_UNBOUNDED
    timestamp_after_ms_max: int = 3_600_000
    is_log_append_time: bool = False
    is_compacted: bool = False
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000

    def resolve(self, configs: Mapping[str, str]) -> TopicConfig:
        """These defaults with a topic's own settings over them."""
        changes: dict[str, int | bool] = {
            field: int(configs[name]) for name, field in _WHOLE_NUMBERS.items() if name in configs
        }
        if "message.timestamp.type" in configs:
            changes["is_log_append_time"] = configs["message.timestamp.type"] == "LogAppendTime"
        if "cleanup.policy" in configs:
            policies = [item.strip() for item in configs["cleanup.policy"].split(",")]
            changes["is_compacted"] = "compact" in policies
        return replace(self, **changes)  # type: ignore[arg-type]  # int or bool by field


def kafka_configs(config: TopicConfig) -> dict[str, str]:
    """The settings under Kafka's names, as DescribeConfigs shows them."""
    return {
        **{name: str(getattr(config, field)) for name, field in _WHOLE_NUMBERS.items()},
        "message.timestamp.type": "LogAppendTime" if config.is_log_append_time else "CreateTime",
        "cleanup.policy": "compact" if config.is_compacted else "delete",
    }


_WHOLE_NUMBERS = {
    "max.message.bytes": "message_bytes_max",
    "message.timestamp.before.max.ms": "timestamp_before_ms_max",
    "message.timestamp.after.max.ms": "timestamp_after_ms_max",
    "segment.bytes": "segment_bytes",
    "segment.ms": "segment_ms",
}
