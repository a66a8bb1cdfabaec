"""The classes of pyspark that this package uses, with types.

pyspark may be absent during type checking, and an untyped class cannot be a base class. This module declares
the part of its API that is used here. At run time these are pyspark's own classes; all other modules import
them from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    import pyarrow as pa
    from pyspark.sql.types import StructType

    class InputPartition:
        """One task of a read."""

        value: Any

        def __init__(self, value: Any) -> None: ...

    class DataSourceReader:
        """A batch read: a Python worker at the driver plans it, and executors run its tasks."""

        def pushFilters(self, filters: list[Any]) -> Iterable[Any]: ...  # noqa: N802 - Spark's name
        def partitions(self) -> Sequence[InputPartition]: ...
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...

    class ReadLimit:
        """Size limit of a micro-batch."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    class ReadMaxRows(ReadLimit):
        """At most this many rows."""

        max_rows: int

        def __init__(self, max_rows: int) -> None: ...

    class ReadMinRows(ReadLimit):
        """At least this many rows."""

        min_rows: int

        def __init__(self, min_rows: int) -> None: ...

    class DataSourceStreamReader:
        """A streaming read: a Python worker at the driver keeps its offsets for the whole query."""

    class SupportsTriggerAvailableNow:
        """Marker of readers that support a final offset."""

    class DataSource:
        """A format of `spark.read`."""

        options: Mapping[str, str]

        def __init__(self, options: Mapping[str, str]) -> None: ...

else:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType

__all__ = [
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "StructType",
    "SupportsTriggerAvailableNow",
]
