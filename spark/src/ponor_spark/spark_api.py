"""The classes of pyspark that this member builds on, with the types it relies on.

pyspark may be absent where types are checked, and a class without types cannot be a base: this is its small surface that is used here, by name and shape. At run time these are pyspark's own
classes; everybody here takes them from this module.
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
        """A batch read, planned in a worker of the driver and carried out by executors."""

        def pushFilters(self, filters: list[Any]) -> Iterable[Any]: ...  # noqa: N802 - Spark's name
        def partitions(self) -> Sequence[InputPartition]: ...
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...

    class ReadLimit:
        """How much a micro-batch may take."""

    class ReadAllAvailable(ReadLimit):
        """Everything."""

    class ReadMaxRows(ReadLimit):
        """So many rows at most."""

        max_rows: int

        def __init__(self, max_rows: int) -> None: ...

    class ReadMinRows(ReadLimit):
        """So many rows at least."""

        min_rows: int

        def __init__(self, min_rows: int) -> None: ...

    class DataSourceStreamReader:
        """A streaming read: its offsets live in a worker of the driver for the whole query."""

    class SupportsTriggerAvailableNow:
        """The mark of readers that know a last offset."""

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
