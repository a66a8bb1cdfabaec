"""Streaming query from a topic to a table, until it is stopped or has copied everything that existed.

The start offsets come from the checkpoint. A new checkpoint continues at the table's end offsets, so a lost
checkpoint causes no error. An empty table starts at `startingOffsets`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ponor_spark.errors import OptionError
from ponor_spark.jobs.iceberg.checkpoint import Checkpoint, names_in, read_through
from ponor_spark.jobs.iceberg.coverage import check_done
from ponor_spark.jobs.iceberg.files import FILE_BYTES_DEFAULT
from ponor_spark.jobs.iceberg.ledger import Ends, held_ends
from ponor_spark.jobs.iceberg.sink import ExactlyOnceSink
from ponor_spark.jobs.iceberg.steps import Steps
from ponor_spark.jobs.iceberg.table import IcebergTable, history_of
from ponor_spark.jobs.registry.decoding import Decoding, decoded
from ponor_spark.jobs.topic import TopicSource
from ponor_spark.option_values import OFFSET_EARLIEST
from ponor_spark.snapshot import Snapshot
from ponor_spark.snapshot_opening import close_snapshot, open_snapshot
from ponor_spark.stream_offsets import topic_ids_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

OFFSETS_OPTION: Final = "startingOffsets"


@dataclass(frozen=True, slots=True)
class IcebergJob:
    """Parameters of the query.

    `available_now`: end when everything that existed at the start is copied; otherwise continue, with a batch
    each `interval` ("10 seconds").
    """

    source: TopicSource
    table: str
    checkpoint: str
    available_now: bool = True
    interval: str = "10 seconds"
    file_bytes: int = FILE_BYTES_DEFAULT
    decoding: Decoding | None = None


def start(
    spark: SparkSession, catalog: Catalog, job: IcebergJob, steps: Steps | None = None
) -> StreamingQuery:
    """Create the table if it is missing, and start the query.

    Raises:
        PonorSparkError: an error of an option, the cluster, the table's columns or its history; nothing was
            started.
    """
    from pyspark.errors import IllegalArgumentException
    from pyspark.sql.pandas.types import to_arrow_schema

    options = job.source.parsed(streaming=True)
    snapshot = open_snapshot(options)
    try:
        table = IcebergTable(catalog, job.table)
        frame = job.source.read_stream(spark, **_beginning(table, catalog, snapshot, job.source.options))
        if job.decoding is not None:
            frame = decoded(frame, job.decoding)
        missing = [name for name in ("topic", "partition", "offset") if name not in frame.columns]
        if missing:
            raise OptionError(
                f"columns: the table needs {missing[0]} to prove that every row is there once; add it"
            )
        table.ensure(to_arrow_schema(frame.schema, timezone="UTC"))
        checkpoint = Checkpoint(job.checkpoint, read_through(spark))
        done = checkpoint.done(names_in(spark, f"{job.checkpoint.rstrip('/')}/commits"))
        check_done(done, held_ends(history_of(table.load()), table.name), table.name)
        sink = ExactlyOnceSink(table, checkpoint, snapshot.cluster_id, file_bytes=job.file_bytes, steps=steps)
    finally:
        close_snapshot(snapshot, options)
    writer = (
        frame.writeStream.queryName(f"{job.source.topics} to {job.table}")
        .foreachBatch(sink)
        .option("checkpointLocation", job.checkpoint)
    )
    if job.available_now:
        return writer.trigger(availableNow=True).start()
    try:
        triggered = writer.trigger(processingTime=job.interval)
    except IllegalArgumentException:
        raise OptionError(
            f"--interval: {job.interval!r} is not a Spark interval; write for example '10 seconds'"
        ) from None
    return triggered.start()


def _beginning(
    table: IcebergTable, catalog: Catalog, snapshot: Snapshot, given: Mapping[str, str]
) -> dict[str, str]:
    """Return startingOffsets for a new checkpoint: the table's ends; partitions that are not in the table
    begin at the earliest offset.
    """
    if not catalog.table_exists(table.name):
        return _earliest_unless(given)
    held = held_ends(history_of(table.load()), table.name)
    if not any(each in held for each in topic_ids_of(snapshot).values()):
        return _earliest_unless(given)
    return {OFFSETS_OPTION: json.dumps(starting_offsets(snapshot, held))}


def _earliest_unless(given: Mapping[str, str]) -> dict[str, str]:
    """Default to the earliest offset: a table should have the whole topic, unless the user chooses
    otherwise.
    """
    return {} if any(name.lower().startswith("starting") for name in given) else {OFFSETS_OPTION: "earliest"}


def starting_offsets(snapshot: Snapshot, held: Ends) -> dict[str, dict[str, int]]:
    """Return every partition of the snapshot, at the table's end if it has one."""
    found: dict[str, dict[str, int]] = {}
    for each in snapshot.partitions:
        ends = held.get(each.topic_id.hex(), {})
        found.setdefault(each.topic, {})[str(each.partition)] = ends.get(each.partition, OFFSET_EARLIEST)
    return found
