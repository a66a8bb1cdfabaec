"""Makes the format known to a session, and starts what keeps the snapshots of this driver alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ponor_spark.lease_keeper import start_keeper
from ponor_spark.lease_notes import LEASES_VARIABLE
from ponor_spark.source import PonorDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
"""Off by default, and left as the session has it: where it is on, every query needs a load() of its own (docs/design/spark.md#integration-with-spark)."""


def register(spark: SparkSession) -> None:
    """Make `format("ponor")` known, for `spark.read` and `spark.readStream`. Calling it again does nothing more.

    From now on the leases of this driver's snapshots are renewed until the driver ends.
    """
    keeper = start_keeper()
    # Planning workers are children of Spark's JVM, which has its environment since before this call; this is what it adds to theirs.
    spark.sparkContext.environment[LEASES_VARIABLE] = str(keeper.directory)
    spark.dataSource.register(PonorDataSource)
