"""Runs native.py whenever this member is built or installed, so that what it makes is never committed."""

import runpy
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent


class NativeHook(BuildHookInterface):
    def initialize(self, version, build_data):
        if runpy.run_path(str(HERE / "native.py"))["compile_all"]():
            # A wheel with compiled code is for this Python and this platform alone.
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
