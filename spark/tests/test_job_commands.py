"""Tests of errors of `ponor spark` before Spark starts, with and without pyspark."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from ponor_spark import java
from ponor_spark.errors import ClusterUnreachableError, OptionError
from ponor_spark.jobs import command
from ponor_spark.jobs.command import spark_app, unwrapped
from ponor_spark.jobs.first_look import look
from ponor_spark.jobs.session import SparkMissingError, need
from ponor_spark.jobs.topic import TopicSource, pairs
from typer.testing import CliRunner

JOBS = Path(__file__).parents[1] / "jobs"
HIDE_PYSPARK = """
import sys
sys.modules["pyspark"] = None
from importlib import util
find = util.find_spec
util.find_spec = lambda name, *rest: None if name.split(".")[0] == "pyspark" else find(name, *rest)
from ponor_spark.jobs.command import spark_app
spark_app(sys.argv[1:])
"""


@pytest.mark.parametrize("job", ["profile", "verify"])
def test_without_pyspark_one_line_names_the_remedy(job: str) -> None:
    words = [sys.executable, "-c", HIDE_PYSPARK, job, "orders", "--bootstrap", "127.0.0.1:1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"ponor: the job ponor {job} needs the package pyspark, which this Python does not have; "
        "`make install .venv/.spark` in a clone of the project, `pip install 'ponor-spark[spark]'`"
        " elsewhere\n"
    )


@pytest.fixture
def pyspark_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first checks need no pyspark, which `make test` does not install."""
    monkeypatch.setattr(command, "need", lambda *_: None)


@pytest.mark.usefixtures("pyspark_is_there")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["profile", "orders"], "--bootstrap: no cluster is given, and ./data contains none; "),
        (["profile", "orders", "--data", "nowhere"], "data: nowhere/cluster.json cannot be read"),
        (["profile", "orders", "-O", "Data=nowhere"], "data: nowhere/cluster.json cannot be read"),
        (["profile", "orders", "--bootstrap", "127.0.0.1:1"], "kafka.bootstrap.servers: no broker answers "),
        (["verify", "orders", "--controllers", "127.0.0.1:1"], "controllers: no answer from 127.0.0.1:1 "),
        (["verify", "orders", "--bootstrap", "h:1", "-O", "tail=broker"], "tail: verify checks objects only"),
        (
            ["profile", "orders", "--bootstrap", "h:1", "-O", "columns=value"],
            "columns: a profile needs all columns",
        ),
        (
            ["profile", "orders", "--bootstrap", "h:1", "--conf", "memory"],
            "--conf: 'memory' is not NAME=VALUE; write for example --conf spark.driver.memory=4g",
        ),
        (
            ["parquet", "orders", "/out", "--bootstrap", "h:1", "-O", "pace=1"],
            "pace: there is no such option; ",
        ),
        (
            ["profile", "orders", "--bootstrap", "h:1", "-O", "nonsense"],
            "--option: 'nonsense' is not NAME=VALUE; ",
        ),
        (
            ["parquet", "orders", "/out", "--bootstrap", "h:1", "--subject", "s"],
            "--subject: without --registry nothing is decoded; ",
        ),
    ],
)
def test_invalid_arguments_give_one_line_before_java_starts(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(java, "find_java", lambda _: pytest.fail("Java was looked for"))
    result = CliRunner().invoke(spark_app, words)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"ponor: {told}")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.usefixtures("pyspark_is_there")
def test_the_directory_that_up_uses_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    cluster = {"controllers": ["127.0.0.1:1"], "object_store": "file:///o", "bootstrap": "127.0.0.1:1"}
    (tmp_path / "data" / "cluster.json").write_text(json.dumps(cluster))
    result = CliRunner().invoke(spark_app, ["profile", "orders"])
    assert result.stderr.startswith("ponor: controllers: no answer from 127.0.0.1:1 ")


def test_brokers_may_be_away_as_long_as_a_controller_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as controller:
        address = f"127.0.0.1:{controller.getsockname()[1]}"
        given = {"controllers": f"127.0.0.1:1,{address}", "kafka.bootstrap.servers": "127.0.0.1:1"}
        options = {**given, "store": "file:///o"}
        look(TopicSource("orders", options).parsed(streaming=False))
    with pytest.raises(
        ClusterUnreachableError, match=r"controllers: no answer from .*is the cluster running"
    ):
        look(TopicSource("orders", options).parsed(streaming=True))


def test_a_missing_package_names_the_extra() -> None:
    need("json", "any", "a job")
    with pytest.raises(
        SparkMissingError, match=r"the job iceberg needs the package no_such, .*ponor-spark\[lakehouse\]"
    ):
        need("no_such", "lakehouse", "the job iceberg")


def test_a_source_is_the_sources_own_options() -> None:
    source = TopicSource("a,b", {"kafka.bootstrap.servers": "h:1", "includeHeaders": "true"})
    assert source.parsed(streaming=False, tail="broker").include_headers
    with pytest.raises(OptionError, match=r"nothing: there is no such option"):
        TopicSource("a", {"kafka.bootstrap.servers": "h:1", "nothing": "1"}).parsed(streaming=True)
    assert pairs(["a=b=c", "d="], "-O") == {"a": "b=c", "d": ""}


def test_our_line_is_taken_out_of_sparks_page() -> None:
    page = type("AnalysisException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed\nTraceback\n  File x\nponor_spark.errors.TopicMissingError:"
        " subscribe: there is no topic x; correct the name\n\nJVM stack"
    )
    assert unwrapped(page(text)) == "subscribe: there is no topic x; correct the name"
    assert unwrapped(page("something of Spark's own")) is None
    assert unwrapped(ValueError(text)) is None


@pytest.mark.parametrize("script", sorted(JOBS.glob("*.py")), ids=lambda path: path.stem)
def test_every_script_is_a_command(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "TOPIC" in done.stdout


def test_the_entry_point_is_the_command() -> None:
    declared = tomllib.loads((JOBS.parent / "pyproject.toml").read_text())["project"]["entry-points"][
        "ponor.commands"
    ]
    assert EntryPoint("spark", declared["spark"], "ponor.commands").load() is spark_app
