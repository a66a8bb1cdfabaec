"""Batch reader of `spark.read.format("ponor")`: planned in a worker of the driver, read by executors.

Each action has its own reader. The snapshot was opened with the DataFrame, so every action sees the same
rows. The reader needs the snapshot only for planning. Executors unpickle only the columns and do not
import planning, which would load gRPC and cost a quarter of a CPU second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ponor_spark.spark_api import DataSourceReader, InputPartition
from ponor_spark.worker_process import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from ponor_spark.options import Options
    from ponor_spark.pushdown import PushedFilters
    from ponor_spark.snapshot import Snapshot


class PonorBatchReader(DataSourceReader):
    """Plans and reads a snapshot.

    It does not define `pushFilters`: Spark uses this class when pushdown is off.
    """

    def __init__(self, snapshot: Snapshot, options: Options, columns: Sequence[str]) -> None:
        self._snapshot = snapshot
        self._options = options
        self._columns = tuple(columns)
        self._filters: PushedFilters | None = None

    def partitions(self) -> list[InputPartition]:
        """Return the splits that remain after options and filters. Spark treats an empty list as one
        `InputPartition(None)`.

        Raises:
            PonorSparkError: requested offsets, or an object that planning reads, no longer exist.
        """
        from ponor_spark.offsets import batch_ranges
        from ponor_spark.planning import plan
        from ponor_spark.pushdown import PushedFilters

        settle()
        ranges = batch_ranges(self._snapshot, self._options)
        filters = self._filters or PushedFilters()
        return [InputPartition(split) for split in plan(self._snapshot, ranges, filters, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split."""
        from ponor_spark.split_reading import read_split

        settle()
        return iter(()) if partition.value is None else read_split(partition.value, self._columns)

    def push(self, filters: list[Any]) -> list[Any]:
        """Store the filters that planning can use; return the filter objects that Spark must check
        again.
        """
        from ponor_spark.pushdown import split_filters

        self._filters, residual = split_filters(filters)
        return residual

    def __getstate__(self) -> dict[str, Any]:
        return {"_columns": self._columns}


class PushingBatchReader(PonorBatchReader):
    """`PonorBatchReader` with pushdown, whether Spark's setting for pushdown is on or off.

    Spark fails a query if the reader overrides `pushFilters` while spark.sql.python.filterPushdown.enabled is
    off (DATA_SOURCE_PUSHDOWN_DISABLED), and the worker that creates the reader cannot see that setting. Spark
    detects an override by the `__func__` of the bound method. `pushFilters` is therefore an instance
    attribute whose `__func__` is that of the base class. Spark calls it only if the setting is on
    (docs/design/spark.md#integration-with-spark).
    """

    def __init__(self, snapshot: Snapshot, options: Options, columns: Sequence[str]) -> None:
        super().__init__(snapshot, options, columns)
        self.__dict__["pushFilters"] = _Pushdown(self.push)


class _Pushdown:
    """Callable that Spark's check identifies as `DataSourceReader.pushFilters`."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, push: Callable[[list[Any]], list[Any]]) -> None:
        self._push = push

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        return self._push(filters)
