"""A stream with the columns and offsets of `format("ponor")` whose rows follow from their offsets,
for tests of sinks.

Other tests use the real source; a query that is killed hundreds of times needs a known number of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from ponor_spark.decode.schema import FULL
from ponor_spark.spark_api import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SupportsTriggerAvailableNow,
)
from ponor_spark.stream_offsets import TOPIC_IDS

TOPIC = "orders"
TOPIC_ID = "11111111-2222-3333-4444-555555555555"
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
    " timestampType int"
)
GAP = 7
"""Every seventh offset has no record, as after transactions and compaction."""


class NumberedSource(DataSource):
    """Options: partitions, rows (offsets per partition), step (offsets of a partition in a micro-batch)."""

    @classmethod
    def name(cls) -> str:
        return "numbered"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Reader(int(self.options["partitions"]), int(self.options["rows"]), int(self.options["step"]))


class _Span(InputPartition):
    def __init__(self, partition: int, start: int, end: int) -> None:
        self.partition, self.start, self.end = partition, start, end


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, partitions: int, rows: int, step: int) -> None:
        self.partitions_count, self.rows, self.step = partitions, rows, step

    def initialOffset(self) -> dict[str, Any]:
        return _offsets({str(number): 0 for number in range(self.partitions_count)})

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        start = start or self.initialOffset()
        return _offsets(
            {number: min(offset + self.step, self.rows) for number, offset in start[TOPIC].items()}
        )

    def prepareForTriggerAvailableNow(self) -> None:
        """All rows are available from the beginning."""

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [_Span(int(number), start[TOPIC][number], until) for number, until in end[TOPIC].items()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Span)
        offsets = [offset for offset in range(partition.start, partition.end) if offset % GAP]
        if offsets:
            columns = {
                "key": [b"k%d" % (offset % 5) for offset in offsets],
                "value": [value_of(partition.partition, offset) for offset in offsets],
                "topic": [TOPIC] * len(offsets),
                "partition": [partition.partition] * len(offsets),
                "offset": offsets,
                "timestamp": [1_700_000_000_000_000 + offset * 1_000_000 for offset in offsets],
                "timestampType": [0] * len(offsets),
            }
            yield pa.RecordBatch.from_pydict(columns, schema=FULL)

    def commit(self, end: Any) -> None:
        """Nothing to release."""


def _offsets(by_partition: dict[str, int]) -> dict[str, Any]:
    return {TOPIC: by_partition, TOPIC_IDS: {TOPIC: TOPIC_ID}}


def value_of(partition: int, offset: int) -> bytes:
    return b"%d:%d" % (partition, offset)


def all_rows(partitions: int, rows: int) -> Counter[tuple[str, int, int, bytes | None]]:
    return Counter((TOPIC, p, o, value_of(p, o)) for p in range(partitions) for o in range(rows) if o % GAP)
