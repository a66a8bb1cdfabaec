"""Spark session of a job: the one of spark-submit, or a local one in this process.

Importing this module imports nothing of Spark, so that machines without pyspark get a one-line error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ponor_spark.errors import PonorSparkError
from ponor_spark.java import JavaMissingError, prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT: Final = "local[*]"
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of a local session for one command: its ports are not reachable from other machines."""


class SparkMissingError(PonorSparkError):
    """pyspark, or another package that the job needs, is not installed."""


def need(module: str, extra: str, what: str) -> None:
    """Raise SparkMissingError, with the remedy, if `module` is not installed."""
    if find_spec(module) is None:
        raise SparkMissingError(
            f"{what} needs the package {module}, which this Python does not have; `make install"
            f" .venv/.spark` in a clone of the project, `pip install 'ponor-spark[{extra}]'` elsewhere"
        )


@contextmanager
def session(name: str, settings: Mapping[str, str], master: str | None = None) -> Iterator[SparkSession]:
    """Yield a session with the format "ponor" registered; a session created here is stopped at the end.

    Args:
        name: name of the application.
        settings: Spark settings; they override those of spark-submit.
        master: master without spark-submit; by default all cores of this machine.

    Raises:
        SparkMissingError: there is no pyspark, or no Java for it.
    """
    need("pyspark", "spark", f"the job {name}")
    try:
        prepare()
    except JavaMissingError as error:
        raise SparkMissingError(str(error)) from error
    from pyspark.sql import SparkSession

    import ponor_spark

    existing = SparkSession.getActiveSession()
    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ and existing is None:
        # Not started by spark-submit: use a cluster of one process.
        builder = builder.master(master or MASTER_DEFAULT)
        settings = {**LOCAL, **settings}
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    ponor_spark.register(spark)
    try:
        yield spark
    finally:
        if existing is None:
            spark.stop()
