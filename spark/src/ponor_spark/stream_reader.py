"""`spark.readStream.format("ponor")`: micro-batches between offsets that the query's checkpoint keeps.

Every look for new rows is a snapshot; a micro-batch is planned by one that covers its end, whichever run of the query began it. What Spark's checkpoint has wins over everything that a snapshot
says: rows are read once, in the batch whose offsets name them. Executors unpickle the columns and nothing else (`batch_reader.py`).
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
    """What Spark asks; `StreamPlanner` answers in the driver's worker, executors read."""

    def __init__(self, options: Options, columns: Sequence[str], looked_at: Snapshot | None) -> None:
        """Nothing is contacted.

        Args:
            options: of a stream.
            columns: of the rows.
            looked_at: a snapshot that was opened when the format was loaded, to be given back.
        """
        self._options = options
        self._columns = tuple(columns)
        self._looked_at = looked_at
        self._planner: StreamPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint begins."""
        return self._plan().initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What the options say of a batch's size. Spark knows one limit at a time; `StreamPlanner` looks at both."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next batch; `start` itself where there is nothing (or too little) to read."""
        if isinstance(limit, ReadAllAvailable):
            return self._plan().latest(start, most=None, least=None)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._plan().latest(start, most=most, least=self._options.min_offsets_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """What the newest snapshot has, for the query's progress."""
        return self._plan().newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of the query: what comes later is left to the next one."""
        self._plan().fix_end()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """The splits of one micro-batch, in this run or in the one that a checkpoint came from."""
        return [InputPartition(split) for split in self._plan().splits(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one split."""
        from ponor_spark.split_reading import read_split

        settle()
        return iter(()) if partition.value is None else read_split(partition.value, self._columns)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Everything below `end` was processed: what only that batch needed is let go."""
        assert end is not None
        self._plan().committed()

    def stop(self) -> None:
        """Give the leases back."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            from ponor_spark.stream_planning import StreamPlanner

            self._planner = StreamPlanner(self._options, looked_at=self._looked_at)
            self._looked_at = None
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        return {"_columns": self._columns}
