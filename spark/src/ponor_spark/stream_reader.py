"""Stream reader of `spark.readStream.format("ponor")`: micro-batches between offsets in the query's
checkpoint.

Every check for new rows takes a snapshot. A micro-batch is planned from a snapshot that covers its end,
also if an earlier run of the query began the batch. The checkpoint takes precedence over snapshots: each row
is read once, in the batch whose offsets include it. Executors unpickle only the columns (`batch_reader.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ponor_spark.spark_api import (
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from ponor_spark.worker_process import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from ponor_spark.options import Options
    from ponor_spark.snapshot import Snapshot
    from ponor_spark.stream_planning import StreamPlanner


class PonorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Implements Spark's interface. In the driver's worker it calls `StreamPlanner`; executors only read."""

    def __init__(self, options: Options, columns: Sequence[str], examined: Snapshot | None) -> None:
        """Create a reader without connecting.

        Args:
            options: options of the stream.
            columns: columns of the rows.
            examined: a snapshot that was opened when the format was loaded; the planner closes it.
        """
        self._options = options
        self._columns = tuple(columns)
        self._examined = examined
        self._planner: StreamPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start of a query without a checkpoint."""
        return self._plan().initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the batch limit of the options.

        Spark supports one limit at a time; `StreamPlanner` applies both.
        """
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next batch; `start` if there are no rows or too few."""
        if isinstance(limit, ReadAllAvailable):
            return self._plan().latest(start, most=None, least=None)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._plan().latest(start, most=most, least=self._options.min_offsets_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end of the newest snapshot, for the query's progress."""
        return self._plan().newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of the query; later rows are left to the next query."""
        self._plan().fix_end()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the splits of one micro-batch, of this run or from a checkpoint."""
        return [InputPartition(split) for split in self._plan().splits(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split."""
        from ponor_spark.split_reading import read_split

        settle()
        return iter(()) if partition.value is None else read_split(partition.value, self._columns)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Release what only batches below `end` needed."""
        assert end is not None
        self._plan().committed()

    def stop(self) -> None:
        """Close the leases."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            from ponor_spark.stream_planning import StreamPlanner

            self._planner = StreamPlanner(self._options, examined=self._examined)
            self._examined = None
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        return {"_columns": self._columns}
