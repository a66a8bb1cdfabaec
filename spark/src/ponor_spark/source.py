"""The format `ponor`: what `spark.read.format("ponor").load()` creates in a worker of the driver.

A DataFrame's snapshot is opened here once, so that all its actions see the same rows and load() reports
errors in options, cluster or topics. Spark does not tell a source whether it is for `read` or `readStream`; a
stream uses this snapshot only as a check and closes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyspark

from ponor_spark.batch_reader import PonorBatchReader, PushingBatchReader
from ponor_spark.decode.schema import FULL, HEADERS
from ponor_spark.errors import OptionError, PonorSparkError, TopicMissingError
from ponor_spark.options import STREAM_ONLY, Options, Pushdown, parse_options
from ponor_spark.row_schema import columns_of, ddl_of
from ponor_spark.spark_api import DataSource
from ponor_spark.stream_reader import PonorStreamReader
from ponor_spark.worker_process import forget_jars, settle

if TYPE_CHECKING:
    from ponor_spark.snapshot import Snapshot
    from ponor_spark.spark_api import StructType

FORMAT: Final = "ponor"
PUSHDOWN_SOUND_FROM: Final = (4, 3)
"""Before this version, a query without filters gets the plan of an earlier one with filters on the same
DataFrame (docs/design/spark.md#integration-with-spark).
"""


class PonorDataSource(DataSource):
    """Data source of topics, with the rows of Spark's Kafka connector, read from objects."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Validate the options and open the snapshot.

        Raises:
            PonorSparkError: an option is invalid, the cluster does not answer, or a topic is missing: one
                line, with the remedy.
        """
        super().__init__(options)
        forget_jars()
        self._given = dict(options)
        self._snapshot: Snapshot | None = None
        self._not_for_batches: PonorSparkError | None = None
        try:
            batch = parse_options(self._given, streaming=False)
        except OptionError as error:
            _check_stream(self._given, error)
            self._not_for_batches = error
            return
        # Imported here, because executors also unpickle sources and open no snapshots.
        from ponor_spark.snapshot_opening import open_snapshot_with_tails

        settle()
        try:
            self._snapshot = open_snapshot_with_tails(batch)
        except TopicMissingError as error:
            if batch.fail_on_data_loss:
                raise
            # Only `reader` raises this: a stream continues without a topic that was deleted after its
            # checkpoint, and the checkpoint is unknown here.
            self._not_for_batches = error

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Spark unpickles a source in a worker before the worker imports the modules that it needs.
        forget_jars()
        self.__dict__.update(state)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        """Columns of the options; `.schema(...)` takes precedence and may also choose columns."""
        return ddl_of(self._chosen(parse_columns(self._given)))

    def reader(self, schema: StructType) -> PonorBatchReader:
        """Return a reader of the snapshot.

        The source drops its snapshot, because Spark pickles source and reader for the executors, which do not
        need it.
        """
        if self._not_for_batches is not None:
            raise self._not_for_batches
        snapshot, self._snapshot = self._snapshot, None
        assert snapshot is not None, "a source creates only one reader in each planning worker"
        options = parse_options(self._given, streaming=False)
        kind = PushingBatchReader if pushes(options.pushdown, pyspark.__version__) else PonorBatchReader
        return kind(snapshot, options, columns_of(schema))

    def streamReader(self, schema: StructType) -> PonorStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of a stream, which opens its own snapshots."""
        examined, self._snapshot = self._snapshot, None
        return PonorStreamReader(parse_options(self._given, streaming=True), columns_of(schema), examined)

    @staticmethod
    def _chosen(options: Options) -> Sequence[str]:
        if options.columns is not None:
            return options.columns
        return [*FULL.names, *([HEADERS] if options.include_headers else [])]


def _check_stream(given: Mapping[str, str], batch_error: OptionError) -> None:
    """Check that options that are invalid for a batch are valid for a stream.

    If they are invalid for both, raise the error that applies to the given options.
    """
    try:
        parse_options(given, streaming=True)
    except OptionError as error:
        is_for_stream = {name.lower() for name in STREAM_ONLY} & {name.lower() for name in given}
        raise (error if is_for_stream else batch_error) from None


def parse_columns(given: Mapping[str, str]) -> Options:
    """Parse options of a batch, or else of a stream: the columns are the same."""
    try:
        return parse_options(given, streaming=False)
    except OptionError:
        return parse_options(given, streaming=True)


def pushes(pushdown: Pushdown, spark_version: str) -> bool:
    """Return whether filters are accepted; `spark_version` like 4.2.0."""
    major, minor = spark_version.split(".")[:2]
    is_sound = (int(major), int(minor)) >= PUSHDOWN_SOUND_FROM
    return pushdown is Pushdown.ON or (pushdown is Pushdown.AUTO and is_sound)
