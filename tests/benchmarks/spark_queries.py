"""The measured queries, written once against a DataFrame, so that they do not depend on the source.

Every answer is a few integers that must be equal for all sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Answer: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Middle:
    """A tenth of each partition around its middle. Offsets and times are half-open; times in ms
    since the epoch.
    """

    start_offset: int
    end_offset: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Query:
    """One query. `columns` suffice for it; `options` restrict the read in the source (option names
    of the connector).
    """

    name: str
    columns: tuple[str, ...]
    ask: Callable[[DataFrame, Middle], DataFrame]
    is_range: bool = False
    options: Callable[[Middle], Mapping[str, str]] = lambda _: {}

    def answer(self, frame: DataFrame, middle: Middle) -> Answer:
        """Run it."""
        (row,) = self.ask(frame, middle).collect()
        return tuple(int(value or 0) for value in row)


def queries() -> tuple[Query, ...]:
    """The queries in the order of measurement."""
    return (
        Query("count(*)", ("offset",), _count),
        Query("sum(length(value))", ("value",), _sum),
        Query("groupBy(key).count()", ("key",), _groups),
        Query("10 % by offset, where()", ("offset", "value"), _between_offsets, is_range=True),
        Query("10 % by timestamp, where()", ("timestamp", "value"), _between_times, is_range=True),
        Query("10 % by timestamp, options", ("value",), _sum, options=_time_options),
    )


def _count(frame: DataFrame, _: Middle) -> DataFrame:
    return frame.groupBy().count()


def _sum(frame: DataFrame, _: Middle) -> DataFrame:
    functions: Any = _functions()
    return frame.select(functions.count("value"), functions.sum(functions.length("value")))


def _groups(frame: DataFrame, _: Middle) -> DataFrame:
    functions: Any = _functions()
    counted = frame.groupBy("key").count()
    return counted.select(functions.count("*"), functions.sum("count"), functions.max("count"))


def _between_offsets(frame: DataFrame, middle: Middle) -> DataFrame:
    offset: Any = _functions().col("offset")
    return _sum(frame.where((offset >= middle.start_offset) & (offset < middle.end_offset)), middle)


def _between_times(frame: DataFrame, middle: Middle) -> DataFrame:
    functions: Any = _functions()
    begin, end = (
        functions.lit(datetime.fromtimestamp(ms / 1000, UTC)) for ms in (middle.start_ms, middle.end_ms)
    )
    timestamp = functions.col("timestamp")
    return _sum(frame.where((timestamp >= begin) & (timestamp < end)), middle)


def _time_options(middle: Middle) -> Mapping[str, str]:
    return {"startingTimestamp": str(middle.start_ms), "endingTimestamp": str(middle.end_ms)}


def _functions() -> Any:
    """Imports Spark only in processes with a session."""
    from pyspark.sql import functions

    return functions


FULL_SCANS: Final = ("count(*)", "sum(length(value))", "groupBy(key).count()")
RANGES: Final = ("10 % by offset, where()", "10 % by timestamp, where()")
