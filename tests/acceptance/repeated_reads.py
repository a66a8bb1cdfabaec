"""A reader without a group that reads a topic from its beginning, again and again, in a process of its own, and holds every pass against the one before.

Contents follow from the records' identities (`tests.e2e.load.records`), so nothing but identities has to be remembered.
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
    """Passes under way."""

    def __init__(self, work: Future[tuple[int, int]], stop_file: Path) -> None:
        self._work = work
        self._stop_file = stop_file

    def stop(self) -> tuple[int, int]:
        """End after the present pass; passes, and records that were compared.

        Raises:
            AssertionError: a record was lost, changed, moved, or there twice.
        """
        self._stop_file.touch()
        return self._work.result()


@contextmanager
def repeated_reads(bootstrap: str, topic: str, partitions: int, stop_file: Path) -> Iterator[RepeatedReads]:
    """Read while the story inside goes on."""
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
