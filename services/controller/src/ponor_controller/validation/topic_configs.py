"""The topic settings that Kafka 4 knows, with the values it accepts.

What lives here: names and bounds as facts (org.apache.kafka.storage.internals.log.LogConfig). Whether a setting has an effect is the broker's
business; an unknown name or an impossible value is refused when the topic is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

Check: TypeAlias = Callable[[str], str | None]
"""Says what is wrong with a value, None when nothing is."""

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1


def _whole(low: int, high: int = INT64_MAX) -> Check:
    def check(text: str) -> str | None:
        try:
            value = int(text.strip())
        except ValueError:
            return "must be a whole number"
        return None if low <= value <= high else f"must be {low} to {high}"

    return check


def _fraction(text: str) -> str | None:
    try:
        value = float(text)
    except ValueError:
        return "must be a number"
    return None if 0 <= value <= 1 else "must be 0 to 1"


def _one_of(*choices: str) -> Check:
    return lambda text: None if text in choices else f"must be one of {', '.join(choices)}"


def _list_of(*choices: str) -> Check:
    def check(text: str) -> str | None:
        items = [item.strip() for item in text.split(",") if item.strip()]
        fits = bool(items) and all(item in choices for item in items)
        return None if fits else f"must be a list of {', '.join(choices)}"

    return check


def _throttled_replicas(text: str) -> str | None:
    items = [item.strip() for item in text.split(",") if item.strip()]
    fits = text.strip() in ("", "*") or all(
        len(parts := item.split(":")) == 2 and all(part.isdecimal() for part in parts) for item in items
    )
    return None if fits else "must be '*' or a list of PARTITION:BROKER"


def _gzip_level(text: str) -> str | None:
    return None if text.strip() == "-1" else _whole(1, 9)(text)


def _not_available(text: str) -> str | None:
    if text.lower() not in ("true", "false"):
        return "must be true or false"
    return (
        "must be false: all data is in object storage already, tiered storage is not needed"
        if text.lower() == "true"
        else None
    )


def _boolean(text: str) -> str | None:
    return None if text.lower() in ("true", "false") else "must be true or false"


CHECKS: Final[Mapping[str, Check]] = {
    "cleanup.policy": _list_of("delete", "compact"),
    "compression.gzip.level": _gzip_level,
    "compression.lz4.level": _whole(1, 17),
    "compression.type": _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    "compression.zstd.level": _whole(-131_072, 22),
    "delete.retention.ms": _whole(0),
    "file.delete.delay.ms": _whole(0),
    "flush.messages": _whole(1),
    "flush.ms": _whole(0),
    "follower.replication.throttled.replicas": _throttled_replicas,
    "index.interval.bytes": _whole(0, INT32_MAX),
    "leader.replication.throttled.replicas": _throttled_replicas,
    "local.retention.bytes": _whole(-2),
    "local.retention.ms": _whole(-2),
    "max.compaction.lag.ms": _whole(1),
    "max.message.bytes": _whole(0, INT32_MAX),
    "message.timestamp.after.max.ms": _whole(0),
    "message.timestamp.before.max.ms": _whole(0),
    "message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": _fraction,
    "min.compaction.lag.ms": _whole(0),
    "min.insync.replicas": _whole(1, INT32_MAX),
    "preallocate": _boolean,
    "remote.log.copy.disable": _boolean,
    "remote.log.delete.on.disable": _boolean,
    "remote.storage.enable": _not_available,
    "retention.bytes": _whole(-1),
    "retention.ms": _whole(-1),
    "segment.bytes": _whole(14, INT32_MAX),
    "segment.index.bytes": _whole(4, INT32_MAX),
    "segment.jitter.ms": _whole(0),
    "segment.ms": _whole(1),
    "unclean.leader.election.enable": _boolean,
}


def config_problem(configs: Mapping[str, str]) -> str | None:
    """Why these settings are refused; None when all are fine."""
    for name in sorted(configs):
        check = CHECKS.get(name)
        if check is None:
            return f"topic setting {name!r} is not known"
        problem = check(configs[name])
        if problem is not None:
            return f"topic setting {name!r} is {configs[name]!r}; it {problem}"
    return None
