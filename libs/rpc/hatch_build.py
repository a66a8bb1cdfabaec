"""Build hook that runs generate.py, so that generated code is never committed."""

import runpy
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerateHook(BuildHookInterface):
    def initialize(self, version, build_data):
        runpy.run_path(str(Path(__file__).with_name("generate.py")), run_name="__main__")
