"""Build hook of the members: runs `generate.py`, then compiles the `.pyx` files below `src`.

A member names this file in `[tool.hatch.build.hooks.custom]`. Generated and compiled files stand next to
their sources; git ignores them, wheels contain them. By hand: `python libs/build_hook.py MEMBER`.
"""

from __future__ import annotations

import runpy
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class MemberHook(BuildHookInterface[Any]):
    """Runs at every install and for every wheel of a member."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate and compile."""
        del version
        if build_member(Path(self.root)):
            # A wheel with compiled code is specific to this Python version and platform.
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def build_member(member: Path) -> bool:
    """Generate code, compile modules older than their source; return whether the member has such modules."""
    generator = member / "generate.py"
    if generator.exists():
        runpy.run_path(str(generator), run_name="__main__")
    sources = sorted((member / "src").rglob("*.pyx"))
    for source in sources:
        _compile(source)
    return bool(sources)


def _compile(source: Path) -> None:
    library = source.with_name(source.stem + sysconfig.get_config_var("EXT_SUFFIX"))
    included = source.parent.glob(f"{source.stem.removesuffix('_native')}*.pxi")
    newest = max(part.stat().st_mtime for part in (source, *included))
    if library.exists() and library.stat().st_mtime >= newest:
        return
    c_file = source.with_suffix(".c")
    _run(sys.executable, "-m", "cython", "-3", "--no-docstrings", "-o", str(c_file), str(source))
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    flags = [*shlex.split(sysconfig.get_config_var("CCSHARED") or ""), "-O3", "-DNDEBUG", "-fwrapv"]
    include = f"-I{sysconfig.get_paths()['include']}"
    # Write a new file and rename it, so that processes with the old library mapped keep it.
    fresh = library.with_suffix(".new")
    try:
        _run(*linker, *flags, "-fvisibility=hidden", include, str(c_file), "-o", str(fresh))
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"{c_file} does not compile ({error}); install a C compiler and the headers of Python"
        ) from error
    fresh.replace(library)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603 - trusted compilers and input files


if __name__ == "__main__":
    for name in sys.argv[1:]:
        build_member(Path(name).resolve())
