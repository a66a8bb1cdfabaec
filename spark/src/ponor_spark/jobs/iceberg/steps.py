"""Steps of one micro-batch, so that a test can kill the driver between any two of them.

The sink reports each step when it is done and does nothing between the report and the next step. A listener
that ends the process therefore ends it exactly between these two steps
(tests/acceptance/test_spark_iceberg.py does, at each).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Step(StrEnum):
    """Completed steps.

    Spark has recorded the batch's offsets before the first and records the commit after the last.
    """

    BATCH_GIVEN = "batch-given"
    RANGES_READ = "ranges-read"
    LEDGER_READ = "ledger-read"
    FILES_WRITTEN = "files-written"
    ROWS_CHECKED = "rows-checked"
    SNAPSHOT_STAGED = "snapshot-staged"
    SNAPSHOT_COMMITTED = "snapshot-committed"


class Steps(Protocol):
    """Listener for steps."""

    def reached(self, step: Step, batch_id: int) -> None:
        """Receive a completed step of this micro-batch, before the next step begins.

        Called once per attempt; a batch that is already in the table reaches SNAPSHOT_COMMITTED after
        LEDGER_READ.
        """


class Unwatched:
    """A listener that ignores all steps."""

    def reached(self, step: Step, batch_id: int) -> None:
        """Do nothing."""
