"""Build hook that runs generate.py and native.py, so that generated and compiled files are never committed."""

import runpy
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent


class GenerateHook(BuildHookInterface):
    def initialize(self, version, build_data):
        runpy.run_path(str(HERE / "generate.py"), run_name="__main__")
        if runpy.run_path(str(HERE / "native.py"))["compile_all"]():
            # A wheel with compiled code is specific to this Python version and platform.
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
