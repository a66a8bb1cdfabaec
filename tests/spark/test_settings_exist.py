"""The Spark settings in the example application and in the documentation exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("deploy/spark/application.yaml", "docs/operations/spark.md", "docs/operations/spark-jobs.md")


def named(path: str) -> set[str]:
    """Words that look like settings."""
    return set(
        re.findall(
            r"\bspark\.(?:sql|executor|driver|kubernetes|scheduler)\.[A-Za-z.]+[A-Za-z]",
            (ROOT / path).read_text(),
        )
    )


@pytest.mark.parametrize("path", TEXTS)
def test_documented_settings_exist(spark: SparkSession, path: str) -> None:
    jvm: Any = spark.sparkContext._jvm
    registered = jvm.org.apache.spark.internal.config.ConfigEntry
    unknown = [name for name in sorted(named(path)) if registered.findEntry(name) is None]
    assert not unknown
    if path.endswith(".yaml"):
        assert named(path)
