"""A separate driver: `python -m tests.spark.scan_program MASTER CONTROLLERS TOPIC` reads the topic
and prints, as JSON, a digest of every row and the places of the tasks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ponor_spark
from ponor_spark.java import prepare

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.log.level": "ERROR",
    # Start no task before all executors have registered; otherwise the first one gets all tasks if
    # the second starts slowly.
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main() -> None:
    """Run the scan."""
    master, controllers, topic = sys.argv[1:]
    prepare()
    from pyspark.sql import SparkSession, functions

    builder = SparkSession.builder.master(master).appName("scan")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    ponor_spark.register(spark)
    options = {"controllers": controllers, "subscribe": topic, "includeHeaders": "true", "splitBytes": "64kb"}
    rows = spark.read.format("ponor").options(**options).load()
    digest = functions.xxhash64(*[functions.to_json(functions.struct(name)) for name in rows.columns])
    whole: Any = functions
    found = rows.select(
        whole.count("*"), whole.sum(digest.cast("decimal(38,0)")), whole.min("offset"), whole.max("offset")
    ).first()
    places = rows.mapInArrow(_places, "place string").distinct().count()
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    spark.stop()
    print(json.dumps({"rows": [str(value) for value in found], "places": places, "executors": executors}))


def _places(batches: Iterator[Any]) -> Iterator[Any]:
    """The place of a task: each executor has its own working directory."""
    import pyarrow as pa

    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"place": [str(Path.cwd())]})


if __name__ == "__main__":
    main()
