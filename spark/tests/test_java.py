"""Tests of the choice of Java, with programs that answer like a Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ponor_spark import java
from ponor_spark.java import SHIM_HOME, JavaMissingError, find_java, prepare

ANSWER = """#!/bin/sh
case $1 in
  -XshowSettings:properties) ;;
  *) for word in "$@"; do echo "[$word]"; done; exit 0 ;;
esac
echo '    java.home = {home}' >&2
echo '    java.specification.version = {version}' >&2
echo '    java.vm.specification.version = 99' >&2
{modules}
"""


def installed(home: Path, version: str, *, vector: bool = True) -> Path:
    """Create a program that answers like a Java of this version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    modules = "echo java.base@1\n" + ("echo jdk.incubator.vector@1" if vector else "")
    program.write_text(ANSWER.format(home=home, version=version, modules=modules))
    program.chmod(0o755)
    return home


@pytest.fixture
def no_packaged_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda _: None)


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = installed(tmp_path / "a", "21"), installed(tmp_path / "b", "17")
    runtime = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (runtime.origin, runtime.version, runtime.home) == ("JAVA_HOME", 21, home)


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_one_that_is_too_old_is_passed_over(tmp_path: Path, version: str) -> None:
    old, other = installed(tmp_path / "old", version), installed(tmp_path / "b", "17")
    runtime = find_java({"JAVA_HOME": str(old), "PATH": str(other / "bin")})
    assert (runtime.origin, runtime.home) == ("PATH", other)


@pytest.mark.usefixtures("no_packaged_java")
def test_error_lists_the_searched_places(tmp_path: Path) -> None:
    old = installed(tmp_path / "old", "11")
    with pytest.raises(
        JavaMissingError, match=r"JAVA_HOME .*does not start; PATH .* is Java 11.*ponor-spark\[java\]"
    ):
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")})
    with pytest.raises(JavaMissingError, match="no java on the PATH"):
        find_java({"PATH": str(tmp_path)})


def test_prepared_twice_is_prepared_once(tmp_path: Path) -> None:
    """On the second call JAVA_HOME is the shim, and the Java behind it is unchanged."""
    home = installed(tmp_path / "trimmed", "25", vector=False)
    environment = {"JAVA_HOME": str(home), "PATH": ""}
    prepare(environment)
    assert environment["JAVA_HOME"] == str(SHIM_HOME)
    first = dict(environment)
    prepare(environment)
    assert environment == first
    assert environment["PONOR_JAVA"] == str(home / "bin" / "java")


def test_executors_use_the_python_that_is_chosen_or_this_one(tmp_path: Path) -> None:
    home = str(installed(tmp_path / "a", "17"))
    chosen = {"JAVA_HOME": home, "PYSPARK_PYTHON": "/opt/python"}
    prepare(chosen)
    assert (chosen["PYSPARK_PYTHON"], chosen["PYSPARK_DRIVER_PYTHON"]) == ("/opt/python", "/opt/python")
    left = {"JAVA_HOME": home}
    prepare(left)
    assert (left["PYSPARK_PYTHON"], left["PYSPARK_DRIVER_PYTHON"]) == (sys.executable, sys.executable)


def test_shim_removes_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    home = installed(tmp_path / "trimmed", "25", vector=False)
    words = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.se", "*", 'quo"te']
    environment = {**os.environ, "PONOR_JAVA": str(home / "bin" / "java")}
    command = [str(SHIM_HOME / "bin" / "java"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"[{word}]" for word in words if "vector" not in word]


def test_shim_without_java_reports_what_is_missing() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PONOR_JAVA"}
    done = subprocess.run(
        [str(SHIM_HOME / "bin" / "java"), "-version"], env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "ponor_spark.java.prepare()" in done.stderr
