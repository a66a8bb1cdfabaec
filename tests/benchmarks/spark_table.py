"""Results of the comparison with Spark's Kafka connector: medians with their spread, ratios,
promises; as Markdown and as JSON.

Ratios are the connector's figure divided by ours: above 1 is in our favour. It asserts nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.benchmarks.spark_queries import FULL_SCANS, RANGES
from tests.benchmarks.spark_side import Measured

THEIRS: Final = "connector, Apache Kafka"
THEIRS_FROM_PONOR: Final = "connector, Ponor's brokers"
OURS: Final = "ponor, full schema"
OURS_PRUNED: Final = "ponor, pruned schema"
SIDES: Final = (THEIRS, THEIRS_FROM_PONOR, OURS, OURS_PRUNED)
MEMORY_ALLOWANCE_BYTES: Final = 500 << 20
SMALL_RECORD_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class Round:
    """One answer. `broker_cpu_s`: CPU of the brokers that the side reads from, or, for our source,
    of those that it must not use; without the object server.
    """

    measured: Measured
    broker_cpu_s: float
    store_cpu_s: float

    def cpu_s(self, side: str) -> float:
        """CPU of the answer without the object server. Our source uses no broker, so idle CPU of
        brokers does not count.
        """
        return self.measured.cpu_s + (0.0 if side in {OURS, OURS_PRUNED} else self.broker_cpu_s)


@dataclass(frozen=True, slots=True)
class Row:
    """A query on one topic, answered by one side, all rounds."""

    topic: str
    record_bytes: int
    query: str
    side: str
    rounds: tuple[Round, ...]

    @property
    def wall_s(self) -> float:
        """Median wall seconds."""
        return statistics.median(each.measured.wall_s for each in self.rounds)

    @property
    def cpu_s(self) -> float:
        """Median CPU seconds of Spark and brokers together."""
        return statistics.median(each.cpu_s(self.side) for each in self.rounds)

    @property
    def store_cpu_s(self) -> float:
        """Median."""
        return statistics.median(each.store_cpu_s for each in self.rounds)

    @property
    def memory_bytes(self) -> int:
        """Maximum."""
        return max(each.measured.memory_bytes for each in self.rounds)

    def spread(self) -> str:
        """Least and greatest wall and CPU seconds."""
        walls = [each.measured.wall_s for each in self.rounds]
        cpus = [each.cpu_s(self.side) for each in self.rounds]
        return f"{min(walls):.2f}–{max(walls):.2f} / {min(cpus):.2f}–{max(cpus):.2f}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A promise and its result."""

    topic: str
    query: str
    promise: str
    value: float
    holds: bool


class SparkTable:
    """All rows of a run in the order of measurement."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)

    def row(self, topic: str, query: str, side: str) -> Row | None:
        """None if the side was not measured."""
        found = [each for each in self.rows if (each.topic, each.query, each.side) == (topic, query, side)]
        return found[0] if found else None

    def verdicts(self) -> list[Verdict]:
        """Ratio of our source with the full schema to the connector on Apache Kafka."""
        return [verdict for row in self.rows if row.side == OURS for verdict in self._verdicts_of(row)]

    def markdown(self) -> str:
        """A table for each topic, and the promises."""
        parts = [self._topic_table(topic) for topic in dict.fromkeys(row.topic for row in self.rows)]
        lines = [
            f"- {each.topic}, {each.query}: {each.promise}: {each.value:.2f},"
            f" {'kept' if each.holds else 'NOT KEPT'}"
            for each in self.verdicts()
        ]
        return "\n\n".join([*parts, "\n".join(lines)])

    def values(self) -> dict[str, Any]:
        """Encode for JSON."""
        rows = [
            {**asdict(row), "wall_s": row.wall_s, "cpu_s": row.cpu_s, "memory_bytes": row.memory_bytes}
            for row in self.rows
        ]
        return {"rows": rows, "verdicts": [asdict(each) for each in self.verdicts()]}

    def _verdicts_of(self, ours: Row) -> Iterator[Verdict]:
        theirs = self.row(ours.topic, ours.query, THEIRS)
        if theirs is None:
            return
        wall, cpu = theirs.wall_s / ours.wall_s, theirs.cpu_s / ours.cpu_s
        if ours.query in FULL_SCANS and ours.record_bytes <= SMALL_RECORD_BYTES:
            yield Verdict(ours.topic, ours.query, "wall ≥ 1.6x faster", wall, wall >= 1.6)
            yield Verdict(ours.topic, ours.query, "CPU ≥ 1.3x less", cpu, cpu >= 1.3)
        elif ours.query in FULL_SCANS:
            yield Verdict(ours.topic, ours.query, "wall at least a tie", wall, wall >= 1.0)
            yield Verdict(ours.topic, ours.query, "CPU ≤ 1.3x of theirs", 1 / cpu, 1 / cpu <= 1.3)
        elif ours.query in RANGES:
            yield Verdict(ours.topic, ours.query, "wall ≥ 5x faster", wall, wall >= 5.0)
        more = ours.memory_bytes - theirs.memory_bytes
        yield Verdict(
            ours.topic, ours.query, "memory ≤ theirs + 500 MiB", more / 2**20, more <= MEMORY_ALLOWANCE_BYTES
        )

    def _topic_table(self, topic: str) -> str:
        lines = [
            f"### {topic}",
            "",
            (
                "| query | side | wall s | CPU s | of it brokers | store CPU s | memory MiB | wall, CPU: theirs"  # noqa: E501
                " / this | spread: wall / CPU |"
            ),
            "|---|---|--:|--:|--:|--:|--:|--:|---|",
        ]
        for row in self.rows:
            if row.topic == topic:
                lines.append(self._line(row))
        return "\n".join(lines)

    def _line(self, row: Row) -> str:
        theirs = self.row(row.topic, row.query, THEIRS)
        ratios = "–"
        if theirs is not None and row is not theirs:
            ratios = f"{theirs.wall_s / row.wall_s:.2f}, {theirs.cpu_s / row.cpu_s:.2f}"
        broker = "0"
        if row.side in {THEIRS, THEIRS_FROM_PONOR}:
            broker = f"{statistics.median(each.broker_cpu_s for each in row.rounds):.2f}"
        cells = (
            row.query, row.side, f"{row.wall_s:.2f}", f"{row.cpu_s:.2f}", broker, f"{row.store_cpu_s:.2f}",
            f"{row.memory_bytes / 2**20:,.0f}", ratios, row.spread(),
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"
