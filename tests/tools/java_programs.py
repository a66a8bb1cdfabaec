"""Runs Java programs against a broker: Kafka's own tools, and our small client compiled for one version of
the client library.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.peers.artifacts import CACHE, KAFKA, clients, java, program

RUN_S_MAX: Final = 900
SHORT_LIVED: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8")
"""JVM flags for short programs: no second compiler, one collector thread."""
SOURCES: Final = Path(__file__).parent / "java"


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a program."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Its lines, without empty ones."""
        return [line.rstrip() for line in self.out.splitlines() if line.strip()]


def tool(name: str, *words: str, feed: str | None = None, code: int | None = 0) -> Output:
    """Run one of Kafka's command line tools by its class; `code` is the expected exit code, None for any."""
    command = [java(), *SHORT_LIVED, "-cp", KAFKA.class_path, name, *words]
    return _run(command, feed, code)


def round_trip(version: str, *words: str) -> Output:
    """Run RoundTrip with one version of the client."""
    return _run(round_trip_command(version, *words), None, 0)


def round_trip_command(version: str, *words: str) -> list[str]:
    """The command that runs RoundTrip, compiled for a version of the client if needed."""
    return java_program_command("RoundTrip", version, *words)


def transactional(version: str, *words: str) -> Output:
    """Run Transactional with one version of the client."""
    return _run(java_program_command("Transactional", version, *words), None, 0)


def java_program_command(name: str, version: str, *words: str) -> list[str]:
    """The command that runs one of our Java programs, compiled for a version of the client if needed."""
    libraries = clients(version).class_path
    return [java(), *SHORT_LIVED, "-cp", f"{_compiled(name, version, libraries)}:{libraries}", name, *words]


def _compiled(name: str, version: str, libraries: str) -> Path:
    source = SOURCES / f"{name}.java"
    classes = CACHE / f"{name}-{version}"
    made = classes / f"{name}.class"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        compiler = program("javac", "a Java compiler")
        classes.mkdir(parents=True, exist_ok=True)
        _run(
            [compiler, "-encoding", "UTF-8", "-Werror", "-cp", libraries, "-d", str(classes), str(source)],
            None,
            0,
        )
    return classes


def _run(command: Sequence[str], feed: str | None, code: int | None) -> Output:
    done = subprocess.run(command, capture_output=True, input=feed, text=True, timeout=RUN_S_MAX, check=False)
    said = (
        f"{' '.join(command[-8:])} ended with"
        f" {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    assert code is None or done.returncode == code, said
    return Output(done.returncode, done.stdout, done.stderr)
