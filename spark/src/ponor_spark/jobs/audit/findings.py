"""Findings of an audit by partition: created by executors, merged by the driver. No I/O.

Memory does not grow with the topic: adjacent pieces are merged, and only the first PROBLEMS_MAX problems are
kept while all are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

PROBLEMS_MAX: Final = 20
"""Problems kept per partition, with their text."""
DIGEST_MODULUS: Final = 1 << 128


@dataclass(slots=True)
class PartitionFindings:
    """Findings of a part of a partition, or all of it.

    `aborted_batches`, `aborted_records`: of aborted transactions; 0 unless the isolation level is
    `read_committed`. `covered`: Kafka offsets [start, end) covered by a stored batch. `holes`: covered
    offsets without a record, left by compaction. `digest`: sum of the digests of all rows, independent of the
    order of reading; the reader checks the order.
    """

    topic: str
    partition: int
    rows: int = 0
    batches: int = 0
    control_batches: int = 0
    aborted_batches: int = 0
    aborted_records: int = 0
    holes: int = 0
    first_hole: int | None = None
    size_bytes: int = 0
    digest: int = 0
    covered: list[tuple[int, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def problem(self, words: str) -> None:
        """Record a problem."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(words)

    def cover(self, start: int, end: int) -> None:
        """Record the offsets covered by a batch; they extend the last piece or start a new one."""
        if self.covered and self.covered[-1][1] == start:
            self.covered[-1] = (self.covered[-1][0], end)
        else:
            self.covered.append((start, end))

    def hole(self, first: int, count: int) -> None:
        """Record that `count` offsets from about `first` on have no record."""
        self.holes += count
        self.first_hole = first if self.first_hole is None else min(first, self.first_hole)

    def add(self, other: PartitionFindings) -> None:
        """Merge the findings of another task on the same partition."""
        assert (self.topic, self.partition) == (other.topic, other.partition)
        self.rows += other.rows
        self.batches += other.batches
        self.control_batches += other.control_batches
        self.aborted_batches += other.aborted_batches
        self.aborted_records += other.aborted_records
        self.size_bytes += other.size_bytes
        self.digest = (self.digest + other.digest) % DIGEST_MODULUS
        self.covered.extend(other.covered)
        if other.first_hole is not None:
            self.hole(other.first_hole, other.holes)
        for words in other.problems:
            self.problem(words)
        self.problem_count += other.problem_count - len(other.problems)

    def conclude(self, start: int, end: int, *, compacted: bool) -> None:
        """Compare with the expected state: [start, end) covered, no offset in two batches, and no hole unless
        the topic is compacted.
        """
        at = start
        for low, high in sorted(self.covered):
            if low > at:
                self.problem(f"{self.name}: offsets {at} to {low - 1} are in no batch")
            elif low < at and high > start:
                self.problem(f"{self.name}: offsets {low} to {min(at, high) - 1} are in more than one batch")
            at = max(at, high)
        if at < end:
            self.problem(f"{self.name}: offsets {at} to {end - 1} are in no batch")
        if self.holes and not compacted:
            self.problem(
                f"{self.name}: {self.holes} offsets, the first near {self.first_hole}, have no record, and"
                " the topic is not compacted"
            )


def added_up(found: Iterable[PartitionFindings]) -> dict[tuple[str, int], PartitionFindings]:
    """Merge findings by topic and partition."""
    total: dict[tuple[str, int], PartitionFindings] = {}
    for each in found:
        total.setdefault((each.topic, each.partition), PartitionFindings(each.topic, each.partition)).add(
            each
        )
    return total


def first_problems(found: Sequence[PartitionFindings], limit: int) -> list[str]:
    """Return the first problems, in partition order."""
    return [words for each in found for words in each.problems][:limit]
