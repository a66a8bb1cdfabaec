"""The table has every row exactly once, with a dozen kills of the driver and a concurrent writer.
tests/acceptance/test_spark_iceberg.py makes hundreds of kills.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ponor_spark.decode.schema import FULL
from ponor_spark.jobs.iceberg.steps import Step
from ponor_spark.jobs.iceberg.table import IcebergTable

from tests.spark.iceberg_kills import TABLE, catalog_in, kill_again_and_again, rows_of
from tests.spark.numbered_source import NumberedSource, all_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = 14
pytestmark = pytest.mark.timeout(900)


def test_every_row_is_there_once_after_a_kill_at_every_step(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(NumberedSource)
    IcebergTable(catalog_in(tmp_path / "lake"), TABLE).ensure(FULL)
    rows = 10 * KILLS

    def stream() -> Any:
        source = spark.readStream.format("numbered").option("partitions", "2")
        return source.option("rows", str(rows)).option("step", "20").load()

    hit = kill_again_and_again(spark, stream, tmp_path, KILLS)
    assert set(hit) == set(Step)
    assert rows_of(tmp_path) == all_rows(2, rows)
