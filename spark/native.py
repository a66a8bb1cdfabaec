"""Compile this member's `.pyx` files beside their sources: one C file and one shared library each, ignored by git.

The build hook runs this at every install and wheel build; by hand: `python native.py`. Without a C compiler it prints a warning, and
the package uses the Python version of each module.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCES = Path(__file__).with_name("src") / "ponor_spark"


def compile_all() -> bool:
    """Compile every outdated module; return whether all exist."""
    return all(map(_compile, sorted(SOURCES.rglob("*.pyx"))))


def _compile(source: Path) -> bool:
    library = source.with_name(source.stem + sysconfig.get_config_var("EXT_SUFFIX"))
    newest = max(part.stat().st_mtime for part in (source, *source.parent.glob(f"{source.stem}*.pxi")))
    if library.exists() and library.stat().st_mtime >= newest:
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
    # Write a new file and rename it, so that a process that has mapped the old library keeps it.
    fresh = library.with_suffix(".new")
    try:
        _run(*linker, *flags, f"-I{include}", str(c_file), "-o", str(fresh))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(
            f"warning: {c_file.name} does not compile ({error}); the slower Python version is used\n"
        )
        return False
    fresh.replace(library)
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603 - our own compilers on our own files


if __name__ == "__main__":
    sys.exit(0 if compile_all() else 1)
