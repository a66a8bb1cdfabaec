"""Options of `spark.read.format("ponor")`: the names of Spark's Kafka connector, and some of our own.

Errors are raised here in one line, before any cluster is contacted. Credentials are never options, because
options appear in plans, logs and event files. They come from the environment or the role of driver and
executors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from ponor_spark import option_values as values
from ponor_spark.errors import OptionError
from ponor_spark.option_values import OFFSET_EARLIEST, OFFSET_LATEST, Offsets
from ponor_spark.topics import Assign, Subscribe, SubscribePattern, TopicChoice

MIB: Final = 1 << 20
SPLIT_BYTES_DEFAULT: Final = 64 * MIB
SPLIT_BYTES_MIN: Final = 64 << 10
SPLIT_BYTES_MAX: Final = 16 << 30
SNAPSHOT_TTL_MS_DEFAULT: Final = 3_600_000
"""An hour: long enough for most queries without a keeper, short enough that a dead driver pins little."""
SNAPSHOT_TTL_MS_MIN: Final = 1_000
SNAPSHOT_TTL_MS_MAX: Final = 7 * 86_400_000
MAX_TRIGGER_DELAY_MS_DEFAULT: Final = 900_000
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""Columns that `columns` may name."""


class Edge(StrEnum):
    """An end of the log."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Tail(StrEnum):
    """Source of records beyond the committed objects: none, or a broker."""

    COMMITTED = "committed"
    BROKER = "broker"


class Pushdown(StrEnum):
    """Whether filters skip objects: where Spark handles it correctly, always, or never.

    Spark's own setting for Python sources must also be on.
    """

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Start or end at these offsets; −2 is the earliest, −1 the latest.

    `option` is the option that gave them.
    """

    offsets: Offsets
    option: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start or end, in every partition, at the first record with this timestamp or a later one."""

    timestamp_ms: int
    option: str


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Start or end as with `AtTime`, with a timestamp for each partition."""

    timestamps_ms: Offsets
    option: str


Bound: TypeAlias = Edge | AtOffsets | AtTime | AtTimes


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How the cluster is found; the first given value decides: controllers, data directory, brokers.

    `store` overrides the object store's URL that the cluster reports, for executors that reach it by another
    name.
    """

    controllers: tuple[str, ...] = ()
    data: str = ""
    bootstrap: tuple[str, ...] = ()
    store: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """Parsed options; docs/operations/spark.md describes each.

    If `min_partitions` is None, only sizes determine the splits. A per-trigger limit of None is no limit.
    """

    cluster: ClusterOptions
    topics: TopicChoice
    start: Bound
    end: Bound = Edge.LATEST
    no_match_is_latest: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS_DEFAULT
    include_headers: bool = False
    columns: tuple[str, ...] | None = None
    read_committed: bool = False
    pushdown: Pushdown = Pushdown.AUTO
    tail: Tail = Tail.COMMITTED
    split_bytes: int = SPLIT_BYTES_DEFAULT
    snapshot_ttl_ms: int = SNAPSHOT_TTL_MS_DEFAULT


OPTIONS: Final = [
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "kafka.bootstrap.servers",
    "kafka.isolation.level",
    "controllers",
    "data",
    "store",
    "columns",
    "pushdown",
    "tail",
    "splitBytes",
    "snapshotTtl",
]
_KNOWN: Final = {name.lower(): name for name in OPTIONS}
_WITHOUT_MEANING: Final = re.compile(
    r"kafkaconsumer\.polltimeoutms|fetchoffset\.(numretries|retryintervalms)|groupidprefix"
    r"|kafka\.(group\.id|client\.(id|rack|dns\.lookup)|check\.crcs|exclude\.internal\.topics|allow\.auto\.create\.topics|partition\.assignment\.strategy|enable\.metrics\.push"
    r"|auto\.include\.jmx\.reporter|(fetch|max|request|session|heartbeat|metadata|metrics?|connections|receive|send|retry|reconnect|socket|default\.api)\..+)"
)
"""Options of the Kafka connector that tune its consumers and do not affect rows: accepted, so that a query
changes only its address.
"""
_CREDENTIAL: Final = re.compile(
    r"access.?key|secret|password|credential|token|sasl|jaas|\.ssl\.|^ssl\.|private.?key"
)
STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
"""Options that only `readStream` accepts."""
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def parse_options(options: Mapping[str, str], *, streaming: bool) -> Options:
    """Parse Spark's options; names are case-insensitive.

    Args:
        options: as Spark passes them to a data source.
        streaming: whether they are for `readStream`.

    Raises:
        OptionError: an option is unknown, contradictory or invalid; the message begins with its name.
    """
    given = _known(options)
    for name in _BATCH_ONLY if streaming else ():
        if name in given:
            raise OptionError(f"{name}: a stream has no end; remove it, or use spark.read")
    for name in () if streaming else STREAM_ONLY:
        if name in given:
            raise OptionError(f"{name}: a batch query has no triggers; remove it, or use spark.readStream")
    topics = _topics(given)
    rest = {field: read(name, given[name]) for name, (field, read) in _READ.items() if name in given}
    found = Options(
        cluster=_cluster(given), topics=topics, start=_start(given, streaming), end=_end(given), **rest
    )
    _check_together(found)
    return found


def _known(options: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for written, value in options.items():
        name = written.lower()
        if name in _KNOWN:
            given[_KNOWN[name]] = str(value)
        elif _CREDENTIAL.search(name):
            raise OptionError(
                f"{written}: credentials are never options, because plans and logs show options; give driver"
                " and executors a role, or set AWS_* in their environment"
            )
        elif name == "path":
            raise OptionError("path: topics are not paths; remove this option, and name topics in subscribe")
        elif name == "kafka.security.protocol":
            if str(value).strip().upper() != "PLAINTEXT":
                raise OptionError(
                    f"{written}: {value!r} is not supported, only PLAINTEXT; remove this option, or set"
                    " controllers and store, so that no broker is needed"
                )
        elif not _WITHOUT_MEANING.fullmatch(name):
            raise OptionError(
                f"{written}: there is no such option; remove it (the options are {', '.join(OPTIONS)})"
            )
    return given


def _topics(given: Mapping[str, str]) -> TopicChoice:
    choices = [name for name in ("assign", "subscribe", "subscribePattern") if name in given]
    if not choices:
        raise OptionError("subscribe: no topic is named; give one of subscribe, subscribePattern and assign")
    if len(choices) > 1:
        raise OptionError(f"{choices[0]}: {' and '.join(choices)} are mutually exclusive; keep one of them")
    value = given[choices[0]]
    match choices[0]:
        case "assign":
            return Assign(values.partitions_json("assign", value))
        case "subscribe":
            return Subscribe(values.names("subscribe", value))
    try:
        re.compile(value)
    except re.error as error:
        raise OptionError(
            f"subscribePattern: {value!r} is not a regular expression ({error}); correct it"
        ) from None
    return SubscribePattern(value)


def _cluster(given: Mapping[str, str]) -> ClusterOptions:
    found = ClusterOptions(
        controllers=values.addresses("controllers", given["controllers"]) if "controllers" in given else (),
        data=given.get("data", ""),
        bootstrap=values.addresses("kafka.bootstrap.servers", given["kafka.bootstrap.servers"])
        if "kafka.bootstrap.servers" in given
        else (),
        store=given.get("store", ""),
    )
    if "@" in found.store.partition("://")[2].partition("/")[0]:
        raise OptionError(
            "store: plans and logs would show the credentials in the URL; remove the part before the @"
        )
    if not (found.controllers or found.data or found.bootstrap):
        raise OptionError(
            "kafka.bootstrap.servers: no cluster is named; give its brokers, or the option controllers or"
            " data"
        )
    if found.controllers and found.data:
        raise OptionError("data: data and controllers both name a cluster; keep one of them")
    return found


def _start(given: Mapping[str, str], streaming: bool) -> Bound:
    """Apply the connector's precedence: startingTimestamp, startingOffsetsByTimestamp, startingOffsets."""
    if (bound := _by_time(given, "startingTimestamp", "startingOffsetsByTimestamp")) is not None:
        return bound
    default = Edge.LATEST if streaming else Edge.EARLIEST
    bound = _by_offsets(given, "startingOffsets", default)
    wrong = not streaming and (
        bound == Edge.LATEST or (isinstance(bound, AtOffsets) and _holds(bound.offsets, OFFSET_LATEST))
    )
    if wrong:
        raise OptionError(
            "startingOffsets: a batch that begins at the latest offset (-1) is empty; write earliest, or"
            " offsets from 0 on"
        )
    return bound


def _end(given: Mapping[str, str]) -> Bound:
    if (bound := _by_time(given, "endingTimestamp", "endingOffsetsByTimestamp")) is not None:
        return bound
    bound = _by_offsets(given, "endingOffsets", Edge.LATEST)
    if bound == Edge.EARLIEST or (isinstance(bound, AtOffsets) and _holds(bound.offsets, OFFSET_EARLIEST)):
        raise OptionError(
            "endingOffsets: a batch that ends at the earliest offset (-2) is empty; write latest, or offsets"
        )
    return bound


def _by_time(given: Mapping[str, str], one: str, each: str) -> Bound | None:
    if one in given:
        return AtTime(values.number(one, given[one], minimum=0), one)
    if each in given:
        return AtTimes(values.offsets_json(each, given[each], minimum=0), each)
    return None


def _by_offsets(given: Mapping[str, str], option: str, default: Edge) -> Bound:
    value = given.get(option, default).strip()
    if value.lower() in tuple(Edge):
        return Edge(value.lower())
    return AtOffsets(values.offsets_json(option, value), option)


def _holds(offsets: Offsets, offset: int) -> bool:
    return any(offset in by_partition.values() for by_partition in offsets.values())


def _columns(option: str, value: str) -> tuple[str, ...]:
    canonical = {name.lower(): name for name in COLUMNS}
    found = values.names(option, value)
    for name in found:
        if name.lower() not in canonical:
            raise OptionError(f"{option}: there is no column {name}; write some of {', '.join(COLUMNS)}")
    return tuple(canonical[name.lower()] for name in found)


def _check_together(found: Options) -> None:
    least, most = found.min_offsets_per_trigger, found.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}; raise the one or"
            " lower the other"
        )


_READ: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "startingOffsetsByTimestampStrategy": (
        "no_match_is_latest",
        lambda name, value: values.one_of(name, value, ("error", "latest")) == "latest",
    ),
    "failOnDataLoss": ("fail_on_data_loss", values.flag),
    "minPartitions": ("min_partitions", values.number),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", values.number),
    "minOffsetsPerTrigger": ("min_offsets_per_trigger", values.number),
    "maxTriggerDelay": (
        "max_trigger_delay_ms",
        lambda name, value: values.duration_ms(name, value, 0, values.INT64_MAX),
    ),
    "includeHeaders": ("include_headers", values.flag),
    "columns": ("columns", _columns),
    "kafka.isolation.level": (
        "read_committed",
        lambda name, value: (
            values.one_of(name, value, ("read_committed", "read_uncommitted")) == "read_committed"
        ),
    ),
    "pushdown": ("pushdown", lambda name, value: Pushdown(values.one_of(name, value, tuple(Pushdown)))),
    "tail": ("tail", lambda name, value: Tail(values.one_of(name, value, tuple(Tail)))),
    "splitBytes": (
        "split_bytes",
        lambda name, value: values.size_bytes(name, value, SPLIT_BYTES_MIN, SPLIT_BYTES_MAX),
    ),
    "snapshotTtl": (
        "snapshot_ttl_ms",
        lambda name, value: values.duration_ms(name, value, SNAPSHOT_TTL_MS_MIN, SNAPSHOT_TTL_MS_MAX),
    ),
}
"""Independent options: the field, and its parser."""
