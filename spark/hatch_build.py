"""Run native.py at every build or install of this member, so that generated files are never committed."""

import runpy
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent


class NativeHook(BuildHookInterface):
    def initialize(self, version, build_data):
        if runpy.run_path(str(HERE / "native.py"))["compile_all"]():
            # A wheel with compiled code is specific to this Python version and platform.
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
