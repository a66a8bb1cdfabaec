"""A query from a topic into an Iceberg table, killed at named steps, with a concurrent writer of the table:
shared by the exactly-once tests.

A kill within the process is an exception out of a step: nothing of the sink catches it, the sink and the
query object are thrown away, and a new query starts from the checkpoint and the table alone, as a new driver
does. It spares the five seconds that a JVM takes to start; that a real SIGKILL of driver and JVM ends no
other way is shown by doing that, too (driver_for_kills.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from ponor_spark.jobs.iceberg.checkpoint import Checkpoint, read_through
from ponor_spark.jobs.iceberg.sink import ExactlyOnceSink
from ponor_spark.jobs.iceberg.steps import Step
from ponor_spark.jobs.iceberg.table import IcebergTable

TABLE = "lake.orders"
CLUSTER_ID = "a cluster"
STARVED = "Python worker failed to connect back"
"""Spark's timeout for the start of a worker is ten seconds, which is short for a busy machine."""
STARVED_MAX = 5
MAINTENANCE = ("none", "compaction", "property", "foreign append", "expiry", "compaction and expiry")
FOREIGN_TOPIC = "not ours"


class DriverKilledError(Exception):
    """The driver is killed here."""


@dataclass
class KillAt:
    """Ends the driver when `step` is reached, after `times` earlier passes of it."""

    step: Step | None
    passes: int = 0

    def reached(self, step: Step, batch_id: int) -> None:
        if step is not self.step:
            return
        if self.passes:
            self.passes -= 1
            return
        raise DriverKilledError(f"killed after {step} of batch {batch_id}")


def catalog_in(folder: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("kills", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=folder.as_uri())


def sink_of(spark: Any, folder: Path, kill: KillAt) -> ExactlyOnceSink:
    table = IcebergTable(catalog_in(folder / "lake"), TABLE)
    checkpoint = Checkpoint(str(folder / "checkpoint"), read_through(spark))
    return ExactlyOnceSink(table, checkpoint, CLUSTER_ID, steps=kill, wait=lambda _: None)


def run_until_killed(stream: Callable[[], Any], sink: Callable[[], ExactlyOnceSink], folder: Path) -> bool:
    """Run the query; return True if it was killed, False if it had nothing left to do. A query that
    Spark ends because a worker did not start in time is repeated.
    """
    from pyspark.errors import StreamingQueryException

    for _ in range(STARVED_MAX):
        writer = stream().writeStream.foreachBatch(sink())
        query = (
            writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if DriverKilledError.__name__ in str(error):
                return True
            if STARVED not in str(error):
                raise
        else:
            return False
    raise AssertionError(f"Spark starts no Python worker on this machine: {STARVED_MAX} times")


def maintain(folder: Path, kind: str, number: int) -> None:
    """Operations of a concurrent writer of the table. None changes our rows."""
    table = catalog_in(folder / "lake").load_table(TABLE)
    if table.current_snapshot() is None:
        return
    if "compaction" in kind:
        table.overwrite(table.scan().to_arrow())
    if kind == "property":
        table.transaction().set_properties({"owner": f"writer {number}"}).commit_transaction()
    if kind == "foreign append":
        row = {"topic": FOREIGN_TOPIC, "partition": 0, "offset": number}
        table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    if "expiry" in kind:
        expire_all_but_current(table)


def expire_all_but_current(table: Any) -> None:
    table.refresh()
    current = table.current_snapshot().snapshot_id
    old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != current]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def rows_of(folder: Path) -> Counter[tuple[str, int, int, bytes | None]]:
    """Our rows in the table, with their counts."""
    table = catalog_in(folder / "lake").load_table(TABLE)
    found = table.scan(selected_fields=("topic", "partition", "offset", "value")).to_arrow()
    columns = [found.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")]
    return Counter(row for row in zip(*columns, strict=True) if row[0] != FOREIGN_TOPIC)


def kills(count: int) -> Iterator[tuple[int, Step, str]]:
    """Number, step, and the concurrent writer's next operation. Over many runs, every step is
    combined with every operation.
    """
    steps = list(Step)
    for number in range(count):
        yield (
            number,
            steps[number % len(steps)],
            MAINTENANCE[(number // len(steps) + number % len(steps)) % len(MAINTENANCE)],
        )


def kill_again_and_again(spark: Any, stream: Callable[[], Any], folder: Path, count: int) -> Counter[Step]:
    """Kill the query `count` times, at every step in turn, then let it finish. Return the kills by
    step.

    `stream` creates the DataFrame; it must have data during all kills.
    """

    def killed_at(step: Step | None) -> Callable[[], ExactlyOnceSink]:
        return lambda: sink_of(spark, folder, KillAt(step))

    hit: Counter[Step] = Counter()
    for number, step, kind in kills(count):
        assert run_until_killed(stream, killed_at(step), folder), (
            f"kill {number}: the query ended, the topic is too short"
        )
        hit[step] += 1
        maintain(folder, kind, number)
    assert not run_until_killed(stream, killed_at(None), folder)
    return hit
