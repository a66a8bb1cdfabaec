"""The steps of one micro-batch on its way into the table, so that a driver can be killed between every two of them.

What lives here: their names, in their order, and who is told. The sink says each step when it is done, and does nothing between saying it and beginning the
next; whoever
listens may therefore end the process there, and has ended it between these two steps and nowhere else (tests/acceptance/test_spark_iceberg.py does, at each).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Step(StrEnum):
    """What is done. Spark has written the batch's offsets before the first, and notes the batch as committed after the last."""

    BATCH_GIVEN = "batch-given"
    RANGES_READ = "ranges-read"
    LEDGER_READ = "ledger-read"
    FILES_WRITTEN = "files-written"
    ROWS_CHECKED = "rows-checked"
    SNAPSHOT_STAGED = "snapshot-staged"
    SNAPSHOT_COMMITTED = "snapshot-committed"


class Steps(Protocol):
    """Who is told of steps."""

    def reached(self, step: Step, batch_id: int) -> None:
        """`step` of this micro-batch is done, the next has not begun. Called once each attempt; a batch that the table has already reaches SNAPSHOT_COMMITTED after LEDGER_READ."""


class Unwatched:
    """Nobody listens."""

    def reached(self, step: Step, batch_id: int) -> None:
        """Nothing."""
