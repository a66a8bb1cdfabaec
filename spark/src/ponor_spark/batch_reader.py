"""`spark.read.format("ponor")`: one reader per action, planned in a worker of the driver, its splits read by executors.

The snapshot was opened when the DataFrame was made, so every action on it sees the same rows. The reader holds it for planning only: what executors unpickle knows the columns and
nothing else, and imports nothing of planning, which brings gRPC and a quarter of a CPU second.
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
    """Plans and reads a snapshot. It has no `pushFilters` of its own: this is what Spark gets where pushdown is off."""

    def __init__(self, snapshot: Snapshot, options: Options, columns: Sequence[str]) -> None:
        self._snapshot = snapshot
        self._options = options
        self._columns = tuple(columns)
        self._filters: PushedFilters | None = None

    def partitions(self) -> list[InputPartition]:
        """The splits of what options and filters leave; an empty list is one `InputPartition(None)` to Spark.

        Raises:
            PonorSparkError: offsets that were asked for are gone, or an object with metadata is.
        """
        from ponor_spark.offsets import batch_ranges
        from ponor_spark.planning import plan
        from ponor_spark.pushdown import PushedFilters

        settle()
        ranges = batch_ranges(self._snapshot, self._options)
        filters = self._filters or PushedFilters()
        return [InputPartition(split) for split in plan(self._snapshot, ranges, filters, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one split."""
        from ponor_spark.split_reading import read_split

        settle()
        return iter(()) if partition.value is None else read_split(partition.value, self._columns)

    def push(self, filters: list[Any]) -> list[Any]:
        """Note what planning can use; returns what Spark has to check again, the same objects."""
        from ponor_spark.pushdown import split_filters

        self._filters, residual = split_filters(filters)
        return residual

    def __getstate__(self) -> dict[str, Any]:
        return {"_columns": self._columns}


class PushingBatchReader(PonorBatchReader):
    """The same with pushdown, whether Spark's setting for it is on or off.

    Spark fails a query if the reader overrides `pushFilters` while spark.sql.python.filterPushdown.enabled is off (DATA_SOURCE_PUSHDOWN_DISABLED), and the worker that makes the
    reader cannot see that setting. Spark tells an override by the function behind the bound method; so this one is an attribute that answers when it is called, which happens only where
    the setting is on, and otherwise looks like the one that was inherited (docs/design/spark.md#integration-with-spark).
    """

    def __init__(self, snapshot: Snapshot, options: Options, columns: Sequence[str]) -> None:
        super().__init__(snapshot, options, columns)
        self.__dict__["pushFilters"] = _Pushdown(self.push)


class _Pushdown:
    """Calls a function; to Spark's check it is `DataSourceReader.pushFilters`."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, push: Callable[[list[Any]], list[Any]]) -> None:
        self._push = push

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        return self._push(filters)
