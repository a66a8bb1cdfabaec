"""Decide which of Spark's filters planning can use, and which Spark must check again.

`column op literal` filters (all that Spark passes, joined by AND) become ranges. A filter on `topic`,
`partition` or `offset` that becomes a range is exact. One on `timestamp` skips blocks and records but is
checked again. Filters are identified by class name, so that this module does not import Spark; returned
filters are the same objects that came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from ponor_spark.option_values import INT64_MAX

V = TypeVar("V", str, int)
TOPIC: Final = "topic"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
NEVER_NULL: Final = frozenset({TOPIC, PARTITION, OFFSET, TIMESTAMP})
INT64_MIN: Final = -INT64_MAX - 1
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """Remaining topics, partitions, offsets and timestamps; ranges are half-open.

    The default restricts nothing.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_range: tuple[int, int] = (INT64_MIN, INT64_MAX)
    offsets: frozenset[int] | None = None
    offset_range: tuple[int, int] = (INT64_MIN, INT64_MAX)
    time_range_ms: tuple[int, int] = (INT64_MIN, INT64_MAX)

    @property
    def time_range(self) -> tuple[int, int] | None:
        """`time_range_ms`, or None if it restricts nothing."""
        return None if self.time_range_ms == (INT64_MIN, INT64_MAX) else self.time_range_ms

    def takes(self, topic: str, partition: int) -> bool:
        """Return whether rows of this partition may match."""
        low, high = self.partition_range
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and low <= partition < high
        )

    def clip(self, start_offset: int, end_offset: int) -> tuple[int, int]:
        """Return the remaining part of [start_offset, end_offset)."""
        low, high = self.offset_range
        if self.offsets is not None:
            low = max(low, min(self.offsets, default=high))
            high = min(high, max(self.offsets, default=low - 1) + 1)
        return max(start_offset, low), min(end_offset, high)


def split_filters(filters: Sequence[Any]) -> tuple[PushedFilters, list[Any]]:
    """Convert filters to ranges; also return the filters that Spark must check again."""
    pushed = PushedFilters()
    residual: list[Any] = []
    for each in filters:
        narrowed = _narrow(pushed, each)
        if narrowed is None:
            residual.append(each)
            continue
        pushed, is_exact = narrowed
        if not is_exact:
            residual.append(each)
    return pushed, residual


def _narrow(pushed: PushedFilters, each: Any) -> tuple[PushedFilters, bool] | None:
    """Return the restricted ranges and whether they represent the filter exactly; None if the filter is not
    supported.
    """
    column = _column(each)
    kind = type(each).__name__
    if column is None:
        return None
    if kind == "IsNotNull":
        return (pushed, True) if column in NEVER_NULL else None
    if not hasattr(each, "value"):
        return None
    match column:
        case "topic":
            return _narrow_topics(pushed, kind, each.value)
        case "partition":
            return _narrow_partitions(pushed, kind, each.value)
        case "offset":
            return _narrow_offsets(pushed, kind, each.value)
        case "timestamp":
            return _narrow_time(pushed, kind, each.value)
    return None


def _column(each: Any) -> str | None:
    path = getattr(each, "attribute", None)
    return path[0] if isinstance(path, tuple) and len(path) == 1 else None


def _narrow_topics(pushed: PushedFilters, kind: str, value: Any) -> tuple[PushedFilters, bool] | None:
    chosen = _chosen(kind, value, str)
    if chosen is None:
        return None
    return replace(pushed, topics=chosen if pushed.topics is None else pushed.topics & chosen), True


def _narrow_partitions(pushed: PushedFilters, kind: str, value: Any) -> tuple[PushedFilters, bool] | None:
    if (chosen := _chosen(kind, value, int)) is not None:
        kept = chosen if pushed.partitions is None else pushed.partitions & chosen
        return replace(pushed, partitions=kept), True
    if (limits := _limits(kind, value)) is not None:
        return replace(pushed, partition_range=_both(pushed.partition_range, limits)), True
    return None


def _narrow_offsets(pushed: PushedFilters, kind: str, value: Any) -> tuple[PushedFilters, bool] | None:
    if (chosen := _chosen(kind, value, int)) is not None:
        kept = chosen if pushed.offsets is None else pushed.offsets & chosen
        # Planning keeps all offsets from the smallest to the largest value; Spark filters out the others.
        return replace(pushed, offsets=kept), len(chosen) == 1
    if (limits := _limits(kind, value)) is not None:
        return replace(pushed, offset_range=_both(pushed.offset_range, limits)), True
    return None


def _narrow_time(pushed: PushedFilters, kind: str, value: Any) -> tuple[PushedFilters, bool] | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    value_us = (value - EPOCH) // timedelta(microseconds=1)
    # Records have milliseconds: ms * 1000 >= us is ms >= ceil(us / 1000).
    floor_ms, ceiling_ms = value_us // 1000, -(-value_us // 1000)
    match kind:
        case "GreaterThanOrEqual":
            limits = (ceiling_ms, INT64_MAX)
        case "GreaterThan":
            limits = (floor_ms + 1, INT64_MAX)
        case "LessThan":
            limits = (INT64_MIN, ceiling_ms)
        case "LessThanOrEqual":
            limits = (INT64_MIN, floor_ms + 1)
        case "EqualTo" | "EqualNullSafe":
            limits = (ceiling_ms, floor_ms + 1)
        case _:
            return None
    return replace(pushed, time_range_ms=_both(pushed.time_range_ms, limits)), False


def _chosen(kind: str, value: Any, of: type[V]) -> frozenset[V] | None:
    """Return the values of an equality or an IN; None for other filters or literals of another type."""
    match kind:
        case "EqualTo" | "EqualNullSafe":
            values = [value]
        case "In":
            values = [each for each in value if each is not None]
        case _:
            return None
    return frozenset(values) if values and all(type(each) is of for each in values) else None


def _limits(kind: str, value: Any) -> tuple[int, int] | None:
    if type(value) is not int:
        return None
    match kind:
        case "GreaterThanOrEqual":
            return value, INT64_MAX
        case "GreaterThan":
            return value + 1, INT64_MAX
        case "LessThan":
            return INT64_MIN, value
        case "LessThanOrEqual":
            return INT64_MIN, value + 1
    return None


def _both(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])
