"""Read the ranges of a micro-batch from Spark's checkpoint, which Spark writes before it runs the batch.

The format is Spark's offset log, version 1
(org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog): a file per batch, named by its id, with
a line for the version, one of JSON metadata, and one offset per source (`stream_offsets`). It is read through
Spark, so the checkpoint may be wherever Spark can write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ponor_spark.errors import PonorSparkError
from ponor_spark.jobs.iceberg.coverage import Ranges
from ponor_spark.jobs.iceberg.ledger import Ends
from ponor_spark.stream_offsets import StreamOffsets, from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION: Final = "v1"
LINES: Final = 3
"""The version, metadata, one source."""


class CheckpointError(PonorSparkError):
    """The checkpoint does not belong to a query of this job."""


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """Ranges of a micro-batch; topic ids by name."""

    topic_ids: Mapping[str, str]
    ranges: Ranges


class Checkpoint:
    """A query's checkpoint directory. `read_text` returns a whole file by its path."""

    def __init__(self, path: str, read_text: Callable[[str], str]) -> None:
        self._path = path.rstrip("/")
        self._read_text = read_text

    def query_id(self) -> str:
        """Return the query's id, which all runs from this checkpoint share."""
        return str(json.loads(self._read_text(f"{self._path}/metadata"))["id"])

    def batch(self, batch_id: int) -> BatchOffsets:
        """Return the offsets of a micro-batch, from the end of the previous one.

        Raises:
            CheckpointError: another format, more than one source, or a source without topic ids.
        """
        ends = self._offsets(batch_id)
        starts = self._offsets(batch_id - 1) if batch_id else StreamOffsets({})
        ranges: dict[tuple[str, int], tuple[int | None, int]] = {}
        for topic, partitions in ends.offsets.items():
            topic_id = ends.topic_ids[topic]
            before = starts.offsets.get(topic, {}) if starts.topic_ids.get(topic) == topic_id else {}
            ranges.update(
                {(topic_id, partition): (before.get(partition), end) for partition, end in partitions.items()}
            )
        return BatchOffsets(ends.topic_ids, ranges)

    def done(self, commits: Iterable[str]) -> Ends:
        """Return the end offsets of the newest batch that Spark has committed, which it will not run again;
        empty if there is none.

        Args:
            commits: names of the files in the directory `commits`, one batch id each.

        Raises:
            CheckpointError: as `batch`.
        """
        numbers = [int(name) for name in commits if name.isdecimal()]
        if not numbers:
            return {}
        found = self._offsets(max(numbers))
        return {found.topic_ids[topic]: dict(partitions) for topic, partitions in found.offsets.items()}

    def _offsets(self, batch_id: int) -> StreamOffsets:
        path = f"{self._path}/offsets/{batch_id}"
        return offsets_of(self._read_text(path), path)


def offsets_of(text: str, path: str) -> StreamOffsets:
    """Return the offset of the only source in a file of the offset log.

    Raises:
        CheckpointError: the file is invalid; names it.
    """
    lines = text.rstrip("\n").split("\n")
    if lines[0] != VERSION or len(lines) != LINES:
        raise CheckpointError(
            f"{path}: an offset log of version {lines[0][:20]!r} with {len(lines) - 2} sources, where one"
            f" source and {VERSION} were expected; give this job a checkpoint of its own"
        )
    try:
        found = from_json(json.loads(lines[2]))
    except (ValueError, AttributeError, TypeError):
        raise CheckpointError(
            f"{path}: {lines[2][:80]!r} is not an offset of a topic; give this job a checkpoint of its own"
        ) from None
    unnamed = [topic for topic in found.offsets if topic not in found.topic_ids]
    if unnamed:
        raise CheckpointError(
            f"{path}: it has no id of topic {unnamed[0]}, so another source wrote it; give this job"
            " a checkpoint of its own"
        )
    return found


def read_through(spark: SparkSession) -> Callable[[str], str]:
    """Return a reader of whole small files through Spark's own file systems and credentials."""

    def read_text(path: str) -> str:
        row = spark.read.text(path, wholetext=True).first()
        if row is None:
            raise CheckpointError(f"{path}: the file is empty; the checkpoint is damaged")
        return str(row[0])

    return read_text


def names_in(spark: SparkSession, folder: str) -> list[str]:
    """Return the names of the files in a directory, through Spark; empty if it does not exist."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Hadoop's file systems have no other door from Python
    path = jvm.org.apache.hadoop.fs.Path(folder)
    system = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
    return [str(each.getPath().getName()) for each in system.listStatus(path)] if system.exists(path) else []
