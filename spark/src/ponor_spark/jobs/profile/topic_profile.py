"""Compute a profile with Spark, in two passes over the topic.

The first pass counts by partition and finds the time range; the second counts by time and by size, in bins
that depend on the range. The results at the driver do not grow with the number of records: a row for each
partition, and at most BINS times SIZE_CLASSES rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BINS: Final = 60
"""Maximum bars of the time histogram."""
SIZE_CLASSES: Final = 32
"""Classes of record sizes: powers of two."""
WIDTHS_MS: Final = tuple(
    count * unit
    for unit, counts in (
        (1, (1, 10, 100)),
        (1000, (1, 5, 15, 30)),
        (60_000, (1, 5, 15, 30)),
        (3_600_000, (1, 3, 6, 12)),
        (86_400_000, (1, 2, 7, 14, 30, 91, 365)),
    )
    for count in counts
)
"""Bar widths that are natural units of time."""


@dataclass(frozen=True, slots=True)
class PartitionProfile:
    """Profile of one partition.

    `first_offset` and `last_offset` are the smallest and largest offset of a row, not the ends of the log.
    `key_nulls` and `value_nulls` count rows without a key or value (a tombstone has no value).
    """

    topic: str
    partition: int
    records: int
    size_bytes: int
    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    key_nulls: int
    value_nulls: int
    keys_distinct: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Records of [start_ms, start_ms + width): count and bytes."""

    start_ms: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TopicProfile:
    """The whole profile.

    `keys_distinct` is an estimate (relative error 5 %) over all partitions; `sizes[n]`: records with at least
    2**(n-1) and less than 2**n bytes of key and value.
    """

    topic: str
    partitions: Sequence[PartitionProfile]
    keys_distinct: int
    width_ms: int
    bins: Sequence[Bin]
    sizes: Sequence[int]
    size_bytes_quantiles: Sequence[int] = field(default=())
    """The median, the 90 % and 99 % quantiles, and the maximum."""

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)

    @property
    def key_nulls(self) -> int:
        return sum(each.key_nulls for each in self.partitions)

    @property
    def value_nulls(self) -> int:
        return sum(each.value_nulls for each in self.partitions)


def profile(frame: DataFrame, topic: str) -> TopicProfile:
    """Compute the profile.

    `frame` has the columns key, value, topic, partition, offset and timestamp, as in Spark's Kafka connector.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    sized = frame.select(
        "key",
        "topic",
        "partition",
        "offset",
        "timestamp",
        F.col("value").isNull().alias("no_value"),
        _size().alias("size"),
    )
    partitions, total = _by_partition(sized)
    if not partitions:
        return TopicProfile(topic, (), 0, 1, (), ())
    first = min(each.first_timestamp_ms for each in partitions)
    last = max(each.last_timestamp_ms for each in partitions)
    width = width_ms(first, last)
    bins, sizes = _by_time_and_size(sized, first // width * width, last, width)
    return TopicProfile(topic, partitions, total["keys"], width, bins, sizes, tuple(total["quantiles"] or ()))


def width_ms(first_ms: int, last_ms: int) -> int:
    """Return the narrowest of WIDTHS_MS (or a multiple of the widest) that needs at most BINS bars, aligned
    to its multiples.
    """
    for width in WIDTHS_MS:
        if last_ms // width - first_ms // width < BINS:
            return width
    widest = WIDTHS_MS[-1]
    return widest * -(-(last_ms // widest - first_ms // widest + 1) // (BINS - 1))


def _size() -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))


def _by_partition(sized: DataFrame) -> tuple[list[PartitionProfile], dict[str, Any]]:
    """Run the first pass: a row for each partition, and one (without a partition) for all of them."""
    from pyspark.sql import functions as F  # noqa: N812

    millis = F.unix_millis("timestamp")
    rows = (
        sized.rollup("topic", "partition")
        .agg(
            F.count("*").alias("records"),
            F.sum("size").alias("bytes"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
            F.min(millis).alias("first_ms"),
            F.max(millis).alias("last_ms"),
            F.count_if(F.col("key").isNull()).alias("key_nulls"),
            F.count_if("no_value").alias("value_nulls"),
            F.approx_count_distinct("key").alias("keys"),
            F.approx_percentile("size", [0.5, 0.9, 0.99, 1.0], 1000).alias("quantiles"),
        )
        .collect()
    )
    total = next((row.asDict() for row in rows if row["topic"] is None), {"keys": 0, "quantiles": ()})
    found = [
        PartitionProfile(
            row["topic"], row["partition"], row["records"], row["bytes"], row["first_offset"], row["last_offset"],  # noqa: E501
            row["first_ms"], row["last_ms"], row["key_nulls"], row["value_nulls"], row["keys"],
        )
        for row in rows
        if row["partition"] is not None
    ]  # fmt: skip
    return sorted(found, key=lambda each: (each.topic, each.partition)), total


def _by_time_and_size(
    sized: DataFrame, start_ms: int, last_ms: int, width: int
) -> tuple[list[Bin], list[int]]:
    from pyspark.sql import functions as F  # noqa: N812

    number = F.floor((F.unix_millis("timestamp") - F.lit(start_ms)) / F.lit(width)).alias("bin")
    # Size class of an integer by bit length: 0 for 0, n for [2**(n-1), 2**n).
    of_size = (
        F.when(F.col("size") == 0, F.lit(0))
        .otherwise(F.length(F.bin(F.col("size").cast("bigint"))))
        .alias("class")
    )
    rows = (
        sized.select(number, of_size, "size")
        .groupBy("bin", "class")
        .agg(F.count("*").alias("n"), F.sum("size").alias("bytes"))
        .collect()
    )
    count = (last_ms - start_ms) // width + 1
    records, size_bytes, sizes = [0] * count, [0] * count, [0] * SIZE_CLASSES
    for row in rows:
        records[row["bin"]] += row["n"]
        size_bytes[row["bin"]] += row["bytes"]
        sizes[min(row["class"], SIZE_CLASSES - 1)] += row["n"]
    bins = [Bin(start_ms + at * width, records[at], size_bytes[at]) for at in range(count)]
    return bins, sizes
