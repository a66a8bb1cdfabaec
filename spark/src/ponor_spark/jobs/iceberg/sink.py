"""Commit one micro-batch to the table exactly once, even if the driver dies.

Durable state is in three places: Spark's offset log (the batch's offsets), the store (data files without a
reference), and the catalog (one pointer to the table's metadata, with compare-and-swap). The swap is the
commit point. Before it the files are orphans and the batch runs again; after it the ledger contains the
batch. The ledger is read from the same metadata that the swap is conditional on. If an old driver still runs
beside a new one, the swap of the later one fails, and that driver then finds the batch in the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ponor_spark.errors import PonorSparkError
from ponor_spark.jobs.iceberg.checkpoint import BatchOffsets, Checkpoint
from ponor_spark.jobs.iceberg.coverage import Coverage, check_rows, coverage, ends_after
from ponor_spark.jobs.iceberg.files import FILE_BYTES_DEFAULT, WrittenFile, write_files
from ponor_spark.jobs.iceberg.ledger import held_ends, snapshot_properties
from ponor_spark.jobs.iceberg.steps import Step, Steps, Unwatched
from ponor_spark.jobs.iceberg.table import IcebergTable, history_of, stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ATTEMPTS_MAX: Final = 10
"""Maximum attempts to commit a batch against other writers."""
WAIT_FIRST_S: Final = 0.1
WAIT_MAX_S: Final = 30.0


class CommitContendedError(PonorSparkError):
    """Other writers won ATTEMPTS_MAX times. The query ends; after a restart it continues with this batch."""


class ExactlyOnceSink:
    """Callback for `foreachBatch`."""

    def __init__(
        self,
        table: IcebergTable,
        checkpoint: Checkpoint,
        cluster_id: str,
        *,
        file_bytes: int = FILE_BYTES_DEFAULT,
        steps: Steps | None = None,
        wait: Callable[[float], None] = time.sleep,  # noqa: TID251 - a thread of Spark's waits here, not a service
    ) -> None:
        self._table = table
        self._checkpoint = checkpoint
        self._cluster_id = cluster_id
        self._file_bytes = file_bytes
        self._steps = Unwatched() if steps is None else steps
        self._wait = wait

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Append the batch, unless the table has it.

        Raises:
            LedgerError: table and checkpoint contradict each other; nothing is written.
            CommitContendedError: other writers won every attempt.
        """
        self._steps.reached(Step.BATCH_GIVEN, batch_id)
        offsets = self._checkpoint.batch(batch_id)
        self._steps.reached(Step.RANGES_READ, batch_id)
        written: list[WrittenFile] | None = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                self._wait(min(WAIT_FIRST_S * 2 ** (attempt - 1), WAIT_MAX_S))
            written, done = self._attempt(frame, batch_id, offsets, written)
            if done:
                self._steps.reached(Step.SNAPSHOT_COMMITTED, batch_id)
                return
        raise CommitContendedError(
            f"table {self._table.name}: batch {batch_id} was not committed in {ATTEMPTS_MAX} attempts,"
            " because other writers changed the table; start the query again when they are less busy"
        )

    def _attempt(
        self, frame: DataFrame, batch_id: int, offsets: BatchOffsets, written: list[WrittenFile] | None
    ) -> tuple[list[WrittenFile] | None, bool]:
        """Read the ledger, write the files if they are not written yet, commit.

        Returns False if another writer won, or if the outcome is unknown.
        """
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        table = self._table.load()
        held = held_ends(history_of(table), self._table.name)
        verdict = coverage(offsets.ranges, held, self._table.name)
        self._steps.reached(Step.LEDGER_READ, batch_id)
        if verdict is Coverage.PRESENT:
            return written, True
        if written is None:
            written = write_files(frame, table.metadata, table.io, offsets.topic_ids, self._file_bytes)
            self._steps.reached(Step.FILES_WRITTEN, batch_id)
        spans = [span for each in written for span in each.spans]
        rows = check_rows(offsets.ranges, held, spans, self._table.name)
        self._steps.reached(Step.ROWS_CHECKED, batch_id)
        ends = ends_after(offsets.ranges, held)
        properties = snapshot_properties(
            offsets.ranges,
            ends,
            cluster_id=self._cluster_id,
            query_id=self._checkpoint.query_id(),
            batch_id=batch_id,
            rows=rows,
        )
        transaction = stage(table, [each.file for each in written], properties, ends)
        self._steps.reached(Step.SNAPSHOT_STAGED, batch_id)
        try:
            transaction.commit_transaction()
        except (CommitFailedException, CommitStateUnknownException):
            # The next attempt reads the ledger again, which shows whether this commit succeeded.
            return written, False
        return written, True
