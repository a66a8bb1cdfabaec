"""The ranges of a micro-batch, as Spark wrote them down in the checkpoint before it ran the batch.

What lives here: Spark's offset log, version 1 (org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog): a file a batch, named by its id; a line
with the version, one of
JSON metadata, and a line for each source with its offset, which is that of `stream_offsets`. Read through Spark, so that the checkpoint may be wherever Spark
can write.
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
    """The checkpoint is not one of a query of this job."""


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """What a micro-batch covers; ids of its topics by their names."""

    topic_ids: Mapping[str, str]
    ranges: Ranges


class Checkpoint:
    """A query's checkpoint directory. `read_text` gives a whole file by its path."""

    def __init__(self, path: str, read_text: Callable[[str], str]) -> None:
        self._path = path.rstrip("/")
        self._read_text = read_text

    def query_id(self) -> str:
        """The id that lives as long as the checkpoint."""
        return str(json.loads(self._read_text(f"{self._path}/metadata"))["id"])

    def batch(self, batch_id: int) -> BatchOffsets:
        """The offsets of a micro-batch: from where the one before it ended.

        Raises:
            CheckpointError: another format, more sources than one, or a source that does not say its topics' ids.
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
        """Where the newest batch ended that Spark took for done, and will not run again; empty where there is none.

        Args:
            commits: names of the files in the directory `commits`, a batch's id each.

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
    """The one source's offset in a file of the offset log.

    Raises:
        CheckpointError: names the file.
    """
    lines = text.rstrip("\n").split("\n")
    if lines[0] != VERSION or len(lines) != LINES:
        raise CheckpointError(
            f"{path}: an offset log of version {lines[0][:20]!r} with {len(lines) - 2} sources, where one source and {VERSION} were expected; give this job a checkpoint of its own"
        )
    try:
        found = from_json(json.loads(lines[2]))
    except (ValueError, AttributeError, TypeError):
        raise CheckpointError(
            f"{path}: {lines[2][:80]!r} is no offset of a topic; give this job a checkpoint of its own"
        ) from None
    unnamed = [topic for topic in found.offsets if topic not in found.topic_ids]
    if unnamed:
        raise CheckpointError(
            f"{path}: no id of topic {unnamed[0]}; the checkpoint is not one of format ponor, give this job one of its own"
        )
    return found


def read_through(spark: SparkSession) -> Callable[[str], str]:
    """Whole small files, wherever Spark reaches: its own file systems and credentials."""

    def read_text(path: str) -> str:
        row = spark.read.text(path, wholetext=True).first()
        if row is None:
            raise CheckpointError(f"{path}: the file is empty; the checkpoint is damaged")
        return str(row[0])

    return read_text


def names_in(spark: SparkSession, folder: str) -> list[str]:
    """Names of the files in a directory, wherever Spark reaches; none where there is no directory."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Hadoop's file systems have no other door from Python
    path = jvm.org.apache.hadoop.fs.Path(folder)
    system = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
    return [str(each.getPath().getName()) for each in system.listStatus(path)] if system.exists(path) else []
