"""Fixtures of tests with a real Spark: a Java runtime, and one session.

A session takes seconds to start and hundreds of MB, and a process has one at a time, so all tests
share it. Tests with other settings start Spark in a separate process.
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
    """The Java runtime for this run, set in the environment of all processes that the tests start."""
    # Otherwise Spark resolves the machine's name, which may fail.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return prepare()


@pytest.fixture(scope="session")
def spark(java: JavaRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2]: two tasks at a time, each with its own Python workers."""
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
    """One cluster for all tests that only add topics; the session has the format registered."""
    register(spark)
    with topics_cluster(tmp_path_factory.mktemp("topics"), spark) as cluster:
        yield cluster
