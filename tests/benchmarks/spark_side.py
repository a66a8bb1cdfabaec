"""One side of the comparison: a process with a Spark session that answers queries one at a time,
and the resources of its process tree.

It contains the child's program (session, read, wall time) and the parent's handle (CPU and memory
of JVM, Python workers and driver together). Two sides have two processes, so that their memory can
be measured separately; the other one is idle.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import psutil

from tests.benchmarks.spark_queries import Answer, Middle, queries

MEMORY_SAMPLE_S: Final = 0.5
"""A sample walks the page tables of the whole tree, about 20 ms on another core, equal for all contenders."""
START_S_MAX: Final = 180.0
ANSWER_S_MAX: Final = 1_200.0
SESSION: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Settings of both sides; others are Spark's defaults, including its heap of 1 GiB."""


@dataclass(frozen=True, slots=True)
class Reader:
    """How a side reads a topic: arguments of `spark.read.format(...).options(...)`. `can_prune`:
    supports the option `columns`.
    """

    format: str
    options: Mapping[str, str]
    can_prune: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """One answer and its cost. CPU is user and system time of all processes of the tree, including
    ended ones.

    Memory is the largest sum of proportional set sizes: Spark's Python workers are forked from one
    another, so a sum of resident sets would count shared pages several times.
    """

    answer: Answer
    wall_s: float
    cpu_s: float
    memory_bytes: int


@dataclass(slots=True)
class SparkSide:
    """A running side."""

    name: str
    _process: psutil.Process
    _pipe: Connection
    _peak_bytes: int = field(default=0)

    def ask(self, query: str, reader: Reader, middle: Middle, *, pruned: bool) -> Measured:
        """Run one query.

        Raises:
            RuntimeError: Spark failed; the text is the child's.
        """
        before_s = _tree_cpu_s(self._process)
        with self._memory_watched():
            self._pipe.send((query, reader, middle, pruned))
            answer, wall_s = _received(self._pipe, ANSWER_S_MAX)
        cpu_s = _tree_cpu_s(self._process) - before_s
        return Measured(answer, wall_s, cpu_s, self._peak_bytes)

    @contextmanager
    def _memory_watched(self) -> Iterator[None]:
        self._peak_bytes = 0
        over = threading.Event()

        def watch() -> None:
            while not over.wait(MEMORY_SAMPLE_S):
                self._peak_bytes = max(self._peak_bytes, _tree_memory_bytes(self._process))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            self._peak_bytes = max(self._peak_bytes, _tree_memory_bytes(self._process))


@contextmanager
def spark_side(name: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[SparkSide]:
    """Start a side: local[2], `settings` in addition to `SESSION`, `environment` in addition to
    this process's.

    Raises:
        RuntimeError: no session was created.
    """
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=_serve, args=(name, {**SESSION, **settings}, dict(environment), far))
    process.start()
    assert process.pid is not None
    try:
        far.close()
        _received(near, START_S_MAX)
        yield SparkSide(name, psutil.Process(process.pid), near)
    finally:
        near.close()
        process.join(30)
        _end_tree(process)


def _end_tree(process: Any) -> None:
    if process.is_alive():
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.join()


def _received(pipe: Connection, seconds_max: float) -> tuple[Answer, float]:
    if not pipe.poll(seconds_max):
        raise RuntimeError(f"Spark did not answer within {seconds_max:.0f} s")
    try:
        kind, *content = pipe.recv()
    except EOFError:
        raise RuntimeError("the process with the Spark session ended") from None
    if kind == "failed":
        raise RuntimeError(str(content[0]))
    answer, wall_s = content
    return tuple(answer), float(wall_s)


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _tree_cpu_s(root: psutil.Process) -> float:
    """CPU of running processes, and through their parents of those that ended and were waited for."""
    total_s = 0.0
    for process in _tree(root):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def _tree_memory_bytes(root: psutil.Process) -> int:
    total = 0
    for process in _tree(root):
        try:
            total += int(process.memory_full_info().pss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def _serve(name: str, settings: Mapping[str, str], environment: Mapping[str, str], pipe: Connection) -> None:
    """The child: one session, queries until the other end closes."""
    os.environ.update(environment)
    try:
        session = _session(name, settings)
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        return
    pipe.send(("ready", (), 0.0))
    while True:
        try:
            query, reader, middle, pruned = pipe.recv()
        except EOFError:
            session.stop()
            return
        began_s = time.perf_counter()
        try:
            answer = _answer(session, query, reader, middle, pruned=pruned)
        except Exception as error:
            pipe.send(("failed", f"{name}, {query}: {type(error).__name__}: {error}"))
            continue
        pipe.send(("answer", answer, time.perf_counter() - began_s))


def _session(name: str, settings: Mapping[str, str]) -> Any:
    from ponor_spark.java import prepare

    # Otherwise Spark resolves the machine's name, which may fail.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName(name)
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    if name == "ponor":
        import ponor_spark

        ponor_spark.register(session)
    return session


def _answer(session: Any, name: str, reader: Reader, middle: Middle, *, pruned: bool) -> Answer:
    """Load and run, as a user experiences it."""
    (query,) = [each for each in queries() if each.name == name]
    options = {**reader.options, **query.options(middle)}
    if query.options(middle):
        options = {key: value for key, value in options.items() if not key.endswith("Offsets")}
    if pruned:
        assert reader.can_prune
        options["columns"] = ",".join(query.columns)
    return query.answer(session.read.format(reader.format).options(**options).load(), middle)
