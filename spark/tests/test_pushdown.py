"""Tests of filters: which ones planning uses, and that Spark gets back the same objects, never fewer than it
needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from ponor_spark.option_values import INT64_MAX
from ponor_spark.pushdown import INT64_MIN, PushedFilters, split_filters

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Comparison:
    """Filters like those of pyspark.sql.datasource: a column and a literal; identified by class name."""

    attribute: tuple[str, ...]
    value: Any = None


(
    EqualTo,
    EqualNullSafe,
    In,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    IsNotNull,
    StringContains,
) = (
    type(name, (Comparison,), {})
    for name in [
        "EqualTo",
        "EqualNullSafe",
        "In",
        "GreaterThan",
        "GreaterThanOrEqual",
        "LessThan",
        "LessThanOrEqual",
        "IsNotNull",
        "StringContains",
    ]
)


@dataclass(frozen=True)
class Not:
    child: Comparison


@dataclass(frozen=True)
class IsNull:
    """A filter without a literal."""

    attribute: tuple[str, ...]


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def test_whether_a_column_is_null_is_left_to_spark() -> None:
    filters = [IsNull((column,)) for column in ("topic", "partition", "offset", "timestamp", "key")]
    assert split_filters(filters) == (PushedFilters(), filters)


def test_exact_filters_are_used_up() -> None:
    pushed, residual = split_filters(
        [
            IsNotNull(("offset",)),
            EqualTo(("topic",), "a"),
            In(("partition",), (1, 2, None)),
            GreaterThan(("partition",), 1),
            GreaterThanOrEqual(("offset",), 10),
            LessThan(("offset",), 20),
        ]
    )
    assert residual == []
    assert pushed.takes("a", 2)
    assert not pushed.takes("a", 1)
    assert not pushed.takes("b", 2)
    assert pushed.clip(0, 100) == (10, 20)
    assert pushed.time_range is None


def test_filters_on_time_are_used_and_returned() -> None:
    filters = [GreaterThanOrEqual(("timestamp",), at(1_500)), LessThan(("timestamp",), at(9_001))]
    pushed, residual = split_filters(filters)
    assert pushed.time_range == (2, 10), (
        "milliseconds: 2 is the first at or after 1.5, 9 the last before 9.001"
    )
    assert [id(each) for each in residual] == [id(each) for each in filters]


def test_unsupported_filters_are_returned_unchanged() -> None:
    filters = [
        Not(EqualTo(("offset",), 1)),
        EqualTo(("value",), b"x"),
        EqualTo(("offset", "inner"), 1),
        EqualTo(("offset",), None),
        EqualTo(("offset",), 1.5),
        EqualTo(("partition",), True),
        In(("topic",), ()),
        IsNotNull(("key",)),
        StringContains(("topic",), "a"),
        GreaterThan(("timestamp",), datetime(2020, 1, 1)),  # noqa: DTZ001 - of no time zone, as TIMESTAMP_NTZ is
    ]
    pushed, residual = split_filters(filters)
    assert pushed == PushedFilters()
    assert [id(each) for each in residual] == [id(each) for each in filters]


def test_in_on_offsets_is_a_range_that_spark_filters() -> None:
    some = In(("offset",), (5, 9))
    pushed, residual = split_filters([some])
    assert pushed.clip(0, 100) == (5, 10)
    assert residual == [some]
    pushed, residual = split_filters([EqualTo(("offset",), 5), EqualNullSafe(("offset",), 6)])
    assert residual == []
    start, end = pushed.clip(0, 100)
    assert start >= end, "no offset is both"


OPERATORS = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}
ROWS = [("a", 0), ("a", 1), ("b", 1), ("b", 2)]


@given(st.data())
def test_no_row_that_passes_is_left_out_and_used_up_filters_are_exact(data: st.DataObject) -> None:
    columns = {
        "partition": st.integers(0, 3),
        "offset": st.integers(0, 6),
        "timestamp": st.integers(-2_000, 5_000).map(at),
    }
    filters = []
    for _ in range(data.draw(st.integers(0, 4))):
        column = data.draw(st.sampled_from(sorted(columns)))
        kind = data.draw(st.sampled_from([*OPERATORS, In]))
        literal = columns[column]
        filters.append(
            kind((column,), data.draw(st.lists(literal, min_size=1).map(tuple) if kind is In else literal))
        )
    pushed, residual = split_filters(filters)
    used_up = [each for each in filters if each not in residual]
    low_ms, high_ms = pushed.time_range or (INT64_MIN, INT64_MAX)
    for topic, partition in ROWS:
        for offset in range(7):
            for time_ms in range(-2, 6):
                row = {"partition": partition, "offset": offset, "timestamp": at(time_ms * 1_000)}
                start, end = pushed.clip(0, 7)
                kept = pushed.takes(topic, partition) and start <= offset < end
                if all(passes(each, row) for each in filters):
                    assert kept
                    assert low_ms <= time_ms < high_ms
                if kept:
                    assert all(passes(each, row) for each in used_up)


def passes(each: Comparison, row: dict[str, Any]) -> bool:
    value = row[each.attribute[0]]
    if isinstance(each, In):
        return value in each.value
    return bool(OPERATORS[type(each)](value, each.value))
