"""Export a topic into a directory of Parquet files, completely or not at all.

Spark writes into a staging directory beside the target. The job counts the written rows and compares them
with the rows read, writes a manifest with the offsets, and renames the directory. An existing target is never
changed. A run that died leaves only its staging directory, which the next run with the same arguments
removes.

A rename of a directory is atomic on a local disk and on HDFS. On S3 it copies every object, so readers there
check for `_SUCCESS`, which is written last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ponor_spark.errors import OptionError, PonorSparkError
from ponor_spark.jobs.registry.decoding import Decoding, decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFEST: Final = "_ponor_manifest.json"
SUCCESS: Final = "_SUCCESS"
PARTITION_BY_DEFAULT: Final = ("partition",)
DATE: Final = "date"
"""Additional partition column: the day of the timestamp."""


class RowsMissingError(PonorSparkError):
    """The written rows differ from the rows read."""


@dataclass(frozen=True, slots=True)
class ParquetResult:
    """Result of an export. `ranges`: by topic and partition, first and last offset, and rows."""

    path: str
    rows: int
    ranges: Mapping[str, Mapping[str, tuple[int, int, int]]]


def run_id(given: Mapping[str, str], path: str) -> str:
    """Return an id that is the same for the same source and target, so that a run can find the staging
    directory of a crashed run.
    """
    return hashlib.sha256(json.dumps([sorted(given.items()), path]).encode()).hexdigest()[:16]


def write(
    frame: DataFrame,
    path: str,
    run: str,
    *,
    partition_by: Sequence[str] = PARTITION_BY_DEFAULT,
    decoding: Decoding | None = None,
) -> ParquetResult:
    """Write the frame.

    Args:
        frame: of the source; one snapshot, so that reading it twice gives the same rows.
        path: any path that Spark can write; nothing may exist there.
        run: names the run's staging directory.
        partition_by: columns that become directories; "date" is the day of the timestamp (UTC if the session
            uses it).
        decoding: columns to add.

    Raises:
        OptionError: something exists at `path`, or a column is unknown.
        RowsMissingError: the files lack rows that were read; the staging directory is kept for inspection.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    spark = frame.sparkSession
    target = _Directory(spark, path.rstrip("/"))
    if target.exists():
        whole = "" if target.exists(SUCCESS) else ", without a file _SUCCESS"
        raise OptionError(
            f"path: {path} already exists{whole}; nothing is overwritten: give another path, or remove it"
        )
    if decoding is not None:
        frame = decoded(frame, decoding)
    if DATE in partition_by:
        frame = frame.withColumn(DATE, F.to_date("timestamp"))
    unknown = [name for name in partition_by if name not in frame.columns]
    if unknown:
        raise OptionError(
            f"partition-by: there is no column {unknown[0]}; write some of"
            f" {', '.join([*frame.columns, DATE])}"
        )
    staging = _Directory(spark, _beside(path.rstrip("/"), run))
    frame.write.mode("overwrite").partitionBy(*partition_by).parquet(staging.path)
    ranges = _ranges(spark.read.schema(_with(frame, partition_by)).parquet(staging.path))
    _compare(_ranges(frame), ranges, staging.path)
    rows = sum(each[2] for partitions in ranges.values() for each in partitions.values())
    staging.write_text(
        MANIFEST, json.dumps({"run": run, "rows": rows, "ranges": ranges}, indent=1, sort_keys=True)
    )
    staging.rename(target.path)
    return ParquetResult(path, rows, ranges)


def _beside(path: str, run: str) -> str:
    """Return the staging directory. Its name begins with a dot, so that Spark ignores it when it reads the
    parent.
    """
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.{run}.staging"


def _with(frame: DataFrame, partition_by: Sequence[str]) -> Any:
    """Return the frame's schema, directory columns last, so that Spark infers no types from the names."""
    return frame.select(*[name for name in frame.columns if name not in partition_by], *partition_by).schema


def _ranges(frame: DataFrame) -> dict[str, dict[str, tuple[int, int, int]]]:
    from pyspark.sql import functions as F  # noqa: N812

    found: dict[str, dict[str, tuple[int, int, int]]] = {}
    counted = frame.groupBy("topic", "partition").agg(F.min("offset"), F.max("offset"), F.count("*"))
    for topic, partition, first, last, rows in counted.collect():
        found.setdefault(topic, {})[str(partition)] = (first, last, rows)
    return found


def _compare(
    read: Mapping[str, Mapping[str, Any]], written: Mapping[str, Mapping[str, Any]], staging: str
) -> None:
    for topic, partitions in read.items():
        for partition, expected in partitions.items():
            there = written.get(topic, {}).get(partition)
            if there != expected:
                raise RowsMissingError(
                    f"{topic}-{partition}: (first offset, last offset, rows) read {expected}, written"
                    f" {there}; nothing was published, and the written files remain in {staging}"
                )


class _Directory:
    """A directory in the file system that Spark finds for its URL."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Hadoop's file systems have no other door from Python
        self.path = path
        self._path = jvm.org.apache.hadoop.fs.Path
        self._system = self._path(path).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001

    def exists(self, name: str = "") -> bool:
        return bool(self._system.exists(self._path(f"{self.path}/{name}".rstrip("/"))))

    def write_text(self, name: str, text: str) -> None:
        stream = self._system.create(self._path(f"{self.path}/{name}"))
        stream.write(bytearray(text.encode()))
        stream.close()

    def rename(self, to: str) -> None:
        if not self._system.rename(self._path(self.path), self._path(to)):
            raise PonorSparkError(
                f"path: {self.path} cannot be renamed to {to}; check that no other process created it, and"
                " start the job again"
            )
