"""Spark data source that reads topics from objects: `register(spark)`, then `spark.read.format("ponor")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("ponor")` with a session (`registration.register`)."""
    from ponor_spark.registration import register as register_format

    register_format(spark)
