"""A standalone Spark cluster of real processes on this machine: one master, workers of one core each.

The pyspark package lacks the start scripts of a standalone cluster but has the classes that they run.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark
from ponor_spark.java import prepare

from tests.ports import free_ports

HOST: Final = "127.0.0.1"
START_S_MAX: Final = 300.0
STOP_S_MAX: Final = 60.0
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
WORKER_MEMORY: Final = "700m"


@contextmanager
def standalone_cluster(directory: Path, workers: int, environment: Mapping[str, str]) -> Iterator[str]:
    """Run master and workers below a directory; yield the master's URL after all workers have
    registered. `environment` is that of the workers and so of their executors.

    Raises:
        AssertionError: a process ended or did not register; the text is its log.
    """
    first = free_ports(2 + workers)
    master, master_page = f"{HOST}:{first}", f"http://{HOST}:{first + 1}/json/"
    with ExitStack() as stack:
        words = ["--host", HOST, "--port", str(first), "--webui-port", str(first + 1)]
        logs = [stack.enter_context(_running(directory / "master", MASTER, words, {}))]
        for number in range(workers):
            home = directory / f"worker-{number}"
            words = ["--host", HOST, "--webui-port", str(first + 2 + number), "--cores", "1"]
            words += ["--memory", WORKER_MEMORY, "--work-dir", str(home / "work"), f"spark://{master}"]
            logs.append(stack.enter_context(_running(home, WORKER, words, environment)))
        deadline = time.monotonic() + START_S_MAX
        while _alive_workers(master_page) < workers:
            said = "\n".join(log.read_text(errors="replace")[-2000:] for log in logs)
            assert time.monotonic() < deadline, f"the workers did not register:\n{said}"
            time.sleep(0.2)
        yield f"spark://{master}"


@contextmanager
def _running(directory: Path, program: str, words: list[str], added: Mapping[str, str]) -> Iterator[Path]:
    """Run one of Spark's processes; yield its log."""
    directory.mkdir(parents=True)
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, **added, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST}
    # As on a separate machine: the worker's environment names no Python; the application selects
    # the one of its executors.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    java: dict[str, str] = dict(environment)
    environment |= prepare(java).variables()
    log = directory / "log"
    with log.open("wb") as output:
        command = [str(home / "bin" / "spark-class"), program, *words]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=directory)
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _alive_workers(page: str) -> int:
    """The number of workers on the master's page."""
    try:
        with urllib.request.urlopen(page, timeout=60) as answer:
            content = json.load(answer)
    except OSError:
        return 0
    return sum(worker["state"] == "ALIVE" for worker in content["workers"])
