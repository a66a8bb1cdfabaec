"""Write the data files of a micro-batch in executors.

An executor writes its Arrow batches into Parquet files of the table and sends one line per file to the
driver. Rows never go to the driver: a thousand files are a thousand lines of a few hundred bytes with the
files' statistics, so the driver opens no file. A task that is retried or runs twice writes files under new
names; Spark reports only the files of the attempt that it accepts. The others are orphans, which the table's
own maintenance removes.

Files are written with pyiceberg's writer and the table's FileIO. They have the same field ids, statistics and
names as files of other writers, and executors need no Hadoop file system for the table's store.
"""

from __future__ import annotations

import functools
import json
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ponor_spark.jobs.iceberg.coverage import Span

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import DataFrame

FILE_BYTES_DEFAULT: Final = 128 << 20
"""Uncompressed Arrow bytes of one file, which a task holds in memory."""
FILES_MAX: Final = 100_000
"""Maximum files of one micro-batch; the driver holds about 500 bytes for each."""
LINE: Final = "file binary, spans string"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file in the store that is in no snapshot yet."""

    file: DataFile
    spans: tuple[Span, ...]


def write_files(
    frame: DataFrame, metadata: TableMetadata, io: FileIO, topic_ids: Mapping[str, str], file_bytes: int
) -> list[WrittenFile]:
    """Run the micro-batch: every partition of the frame writes its files.

    Raises:
        ValueError: more than FILES_MAX files: the batch is too large for one commit.
    """
    lines = (
        frame.mapInArrow(_writer(metadata, io, dict(topic_ids), file_bytes), LINE)
        .limit(FILES_MAX + 1)
        .collect()
    )
    if len(lines) > FILES_MAX:
        raise ValueError(
            f"a micro-batch would write more than {FILES_MAX} files; set maxOffsetsPerTrigger, or larger"
            " files"
        )
    return [WrittenFile(pickle.loads(line[0]), _spans_from_json(line[1])) for line in lines]  # noqa: S301 - made by our own executor


def _writer(
    metadata: TableMetadata, io: FileIO, topic_ids: Mapping[str, str], file_bytes: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark sends to executors, with its parameters."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, table in enumerate(_of_size(batches, file_bytes)):
            for file, rows in _write_table(table, metadata, io, number):
                spans = _spans(rows, topic_ids)
                yield pa.RecordBatch.from_pydict(
                    {"file": [pickle.dumps(file)], "spans": [_spans_to_json(spans)]}
                )

    return write


def _of_size(batches: Iterator[pa.RecordBatch], file_bytes: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            held_bytes += batch.nbytes
        if held_bytes >= file_bytes:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _write_table(
    table: pa.Table, metadata: TableMetadata, io: FileIO, number: int
) -> Iterator[tuple[DataFile, pa.Table]]:
    """Write one file for each table partition with rows; an unpartitioned table has one."""
    from pyiceberg.io.pyarrow import write_file
    from pyiceberg.table import WriteTask

    table = _in_utc(table)
    for key, rows in _by_partition(table, metadata):
        task = WriteTask(uuid.uuid4(), number, metadata.schema(), rows.to_batches(), partition_key=key)  # noqa: TID251 - a name that must be new on every executor
        for file in write_file(io, metadata, iter([task])):
            yield file, rows


def _in_utc(table: pa.Table) -> pa.Table:
    """Convert timestamps from the session's time zone, which Iceberg does not accept, to UTC; the instants
    are the same.
    """
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz not in {None, "UTC"}:
            utc = pa.timestamp(field.type.unit, "UTC")
            table = table.set_column(number, field.with_type(utc), table.column(number).cast(utc))
    return table


def _by_partition(table: pa.Table, metadata: TableMetadata) -> Iterator[tuple[Any, pa.Table]]:
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

    spec, schema = metadata.spec(), metadata.schema()
    if not spec.fields:
        yield None, table
        return
    names = [f"_partition_{field.name}" for field in spec.fields]
    keyed = table
    for field, name in zip(spec.fields, names, strict=True):
        source = schema.find_field(field.source_id)
        values = field.transform.pyarrow_transform(source.field_type)(table.column(source.name))
        keyed = keyed.append_column(name, values)
    for key in keyed.select(names).group_by(names).aggregate([]).to_pylist():
        matches = [
            pc.field(name).is_null() if key[name] is None else pc.field(name) == key[name] for name in names
        ]
        values = [
            PartitionFieldValue(field=field, value=key[name])
            for field, name in zip(spec.fields, names, strict=True)
        ]
        rows = keyed.filter(functools.reduce(lambda left, right: left & right, matches)).drop_columns(names)
        yield PartitionKey(field_values=values, partition_spec=spec, schema=schema), rows


def _spans(rows: pa.Table, topic_ids: Mapping[str, str]) -> list[Span]:
    grouped = rows.select(["topic", "partition", "offset"]).group_by(["topic", "partition"])
    found = grouped.aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    return [
        Span(
            topic_ids[each["topic"]],
            each["partition"],
            each["offset_min"],
            each["offset_max"],
            each["offset_count"],
        )
        for each in found.to_pylist()
    ]


def _spans_to_json(spans: list[Span]) -> str:
    return json.dumps([[s.topic_id, s.partition, s.first_offset, s.last_offset, s.rows] for s in spans])


def _spans_from_json(text: str) -> tuple[Span, ...]:
    return tuple(Span(*each) for each in json.loads(text))
