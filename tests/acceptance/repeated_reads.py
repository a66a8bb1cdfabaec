"""A reader without a group, in a separate process, that reads a topic from its beginning repeatedly
and compares every pass with the previous one.

Contents follow from the records' identities (`tests.e2e.load.records`), so only identities are
stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.load.judge import Acknowledged, judge
from tests.e2e.load.readers import read_all
from tests.e2e.load.steady import spawn_pool


class RepeatedReads:
    """Passes in progress."""

    def __init__(self, work: Future[tuple[int, int]], stop_file: Path) -> None:
        self._work = work
        self._stop_file = stop_file

    def stop(self) -> tuple[int, int]:
        """End after the current pass; return the number of passes and of compared records.

        Raises:
            AssertionError: a record was lost, changed, moved, or duplicated.
        """
        self._stop_file.touch()
        return self._work.result()


@contextmanager
def repeated_reads(bootstrap: str, topic: str, partitions: int, stop_file: Path) -> Iterator[RepeatedReads]:
    """Read while the block runs."""
    with spawn_pool(1) as pool:
        reads = RepeatedReads(pool.submit(_read, bootstrap, topic, partitions, str(stop_file)), stop_file)
        try:
            yield reads
        finally:
            stop_file.touch()


def _read(bootstrap: str, topic: str, partitions: int, stop_file: str) -> tuple[int, int]:
    passes = compared = 0
    known: dict[int, list[tuple[int, str, int, int]]] = {}
    while not Path(stop_file).exists():
        seen = read_all("librdkafka", bootstrap, topic, partitions)
        judge(Acknowledged(), seen)
        for partition, rows in known.items():
            assert seen.partitions[partition][: len(rows)] == rows, f"partition {partition} reads differently"
            compared += len(rows)
        known = dict(seen.partitions)
        passes += 1
    return passes, compared
