"""Compile the `.pyx` files of this member to a C file and a shared library each, next to their sources,
ignored by git.

The build hook runs it at every install and for every wheel; by hand: `python native.py`. Without a C compiler
it prints a warning, and the package uses the Python version of each module.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCES = Path(__file__).with_name("src") / "ponor_kafka"


def compile_all() -> bool:
    """Compile modules that are older than their source; return whether every module is available."""
    return all(map(_compile, sorted(SOURCES.glob("*.pyx"))))


def _compile(source: Path) -> bool:
    library = source.with_name(source.stem + sysconfig.get_config_var("EXT_SUFFIX"))
    if library.exists() and library.stat().st_mtime >= source.stat().st_mtime:
        return True
    c_file = source.with_suffix(".c")
    _run(sys.executable, "-m", "cython", "-3", "--no-docstrings", "-o", str(c_file), str(source))
    return _build_library(c_file, library)


def _build_library(c_file: Path, library: Path) -> bool:
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    flags = [
        *shlex.split(sysconfig.get_config_var("CCSHARED") or ""),
        "-O3",
        "-DNDEBUG",
        "-fwrapv",
        "-fvisibility=hidden",
    ]
    include = sysconfig.get_paths()["include"]
    # Write a new file and rename it, so that processes with the old library mapped keep it.
    fresh = library.with_suffix(".new")
    try:
        _run(*linker, *flags, f"-I{include}", str(c_file), "-o", str(fresh))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(
            f"warning: {c_file.name} does not compile ({error}); using the slower Python version\n"
        )
        return False
    fresh.replace(library)
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603 - trusted compilers and input files


if __name__ == "__main__":
    sys.exit(0 if compile_all() else 1)
