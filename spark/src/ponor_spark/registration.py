"""Registers the format with a session and starts the lease keeper of this driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ponor_spark.lease_keeper import start_keeper
from ponor_spark.lease_notes import LEASES_VARIABLE
from ponor_spark.source import PonorDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
"""Off by default, and not changed here: if it is on, every query needs its own load()
(docs/design/spark.md#integration-with-spark).
"""


def register(spark: SparkSession) -> None:
    """Register `format("ponor")` for `spark.read` and `spark.readStream`. Idempotent.

    From now on the leases of this driver's snapshots are renewed until the driver exits.
    """
    keeper = start_keeper()
    # Planning workers are children of Spark's JVM, which took its environment before this call; this adds the
    # variable to theirs.
    spark.sparkContext.environment[LEASES_VARIABLE] = str(keeper.directory)
    spark.dataSource.register(PonorDataSource)
