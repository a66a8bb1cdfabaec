"""Runs generate.py and native.py whenever this member is built or installed, so that what they make is never committed."""

import runpy
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent


class GenerateHook(BuildHookInterface):
    def initialize(self, version, build_data):
        runpy.run_path(str(HERE / "generate.py"), run_name="__main__")
        if runpy.run_path(str(HERE / "native.py"))["compile_all"]():
            # A wheel with compiled code is for this Python and this platform alone.
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
