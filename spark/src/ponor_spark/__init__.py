"""Topics on Spark, straight from the objects: `register(spark)`, then `spark.read.format("ponor")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("ponor")` known to a session: see `registration.register`, which is imported here, as executors need nothing of it."""
    from ponor_spark.registration import register as register_format

    register_format(spark)
