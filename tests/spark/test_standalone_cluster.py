"""A standalone cluster with two workers reads the same rows as one process, with the read-only key
that deploy/compose gives to Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.spark_topics import TopicSpec, await_uploads, fill, start_ms
from tests.e2e.load.cluster import LocalCluster
from tests.integration.seaweed_server import SeaweedServer
from tests.spark.standalone_cluster import standalone_cluster

RECORDS = 40_000
KEYS = Path(__file__).parents[2] / "deploy" / "compose" / "s3.json"
SCAN_S_MAX = 600


class DeployedKeys(SeaweedServer):
    """The S3 server with the identities of deploy/compose."""

    def _write_configuration(self) -> None:
        super()._write_configuration()
        shutil.copy(KEYS, self.directory / "s3.json")

    @property
    def readers_environment(self) -> dict[str, str]:
        """The environment of Spark's containers."""
        (spark,) = [each for each in json.loads(KEYS.read_text())["identities"] if each["name"] == "spark"]
        (key,) = spark["credentials"]
        names = {"AWS_ACCESS_KEY_ID": key["accessKey"], "AWS_SECRET_ACCESS_KEY": key["secretKey"]}
        return {**self.environment, **names}


@pytest.mark.timeout(1_800)
def test_two_workers_read_the_same_rows_as_one_process(tmp_path: Path) -> None:
    spec = TopicSpec("t", RECORDS, 200, 4, start_ms())
    with DeployedKeys(tmp_path / "s3") as store, _ponor(tmp_path / "ponor", store) as cluster:
        fill(cluster.bootstrap, spec)
        await_uploads(cluster, spec)
        reader = store.readers_environment
        alone = _scan("local[2]", cluster, spec.name, reader)
        with standalone_cluster(tmp_path / "spark", 2, reader) as master:
            # The driver plans and therefore reads indexes: it needs the store's credentials too,
            # and passes them to no other process.
            together = _scan(master, cluster, spec.name, reader)
    assert alone["rows"][0] == str(RECORDS)
    assert together["rows"] == alone["rows"]
    assert (together["executors"], together["places"]) == (2, 2), "both workers took part"


def _ponor(directory: Path, store: SeaweedServer) -> LocalCluster:
    return LocalCluster(
        directory,
        settings={"upload_interval_ms": 1_000},
        arguments=["--object-store", store.url("standalone")],
        environment=store.environment,
    )


def _scan(master: str, cluster: LocalCluster, topic: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The program's output."""
    controllers = ",".join(cluster.describe()["controllers"])
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.scan_program", master, controllers, topic],
        env={**os.environ, **environment, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=SCAN_S_MAX,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
