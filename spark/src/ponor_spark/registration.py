"""Registers the format with a session and starts the lease keeper of this driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ponor_spark.lease_keeper import start_keeper
from ponor_spark.lease_notes import LEASES_VARIABLE
from ponor_spark.source import PonorDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
"""Off by default. This module does not switch it on, because every query would then need its own load()
(docs/design/spark.md#integration-with-spark).
"""


def register(spark: SparkSession) -> None:
    """Register `format("ponor")` for `spark.read` and `spark.readStream`. Idempotent.

    From now on the leases of this driver's snapshots are renewed until the driver exits.
    """
    keeper = start_keeper()
    # Planning workers inherit the environment of Spark's JVM, which started before this call. This adds the
    # variable to the workers' environment.
    spark.sparkContext.environment[LEASES_VARIABLE] = str(keeper.directory)
    spark.dataSource.register(PonorDataSource)
