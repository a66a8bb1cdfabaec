"""What the tests with a real Spark share: a Java that is found or comes with the packages, and one session.

A session costs seconds to start and hundreds of MB, and a process has one at a time: all tests of a run use the same. What needs other settings starts Spark in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from ponor_spark import register
from ponor_spark.java import JavaRuntime, prepare

from tests.spark.topics_cluster import TopicsCluster, topics_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@pytest.fixture(scope="session")
def java() -> JavaRuntime:
    """The Java that Spark runs on in this run, said to everything that is started from here."""
    # Spark resolves the machine's name otherwise, and a machine may not know its own.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return prepare()


@pytest.fixture(scope="session")
def spark(java: JavaRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2]: two tasks at a time, each with Python workers of its own."""
    from pyspark.sql import SparkSession

    assert java.version
    builder = SparkSession.builder.master("local[2]").appName("ponor tests")
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    for name, value in SESSION_SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def topics(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicsCluster]:
    """One cluster for all tests that leave it as it is, but for topics of their own; the session knows the format."""
    register(spark)
    with topics_cluster(tmp_path_factory.mktemp("topics"), spark) as cluster:
        yield cluster
