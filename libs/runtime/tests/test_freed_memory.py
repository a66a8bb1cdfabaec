"""Freed memory is reused: a process that allocates and frees buffers causes no page faults each time."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from ponor_runtime.freed_memory import use_freed_memory_again
if sys.argv[1] == "yes" and not use_freed_memory_again():
    sys.exit(3)
def read_and_forget(times):
    for _ in range(times):
        blocks = [b"x" * 500_000 for _ in range(40)]
        del blocks
read_and_forget(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
read_and_forget(10)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(wanted: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, wanted], capture_output=True, text=True, check=False
    )
    if done.returncode == 3:
        pytest.skip("this allocator does not support the settings")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_reallocated_blocks_cause_no_page_faults() -> None:
    blocks = 10 * 40
    assert faults("yes") < blocks, "less than one fault a block of 122 pages"
    assert faults("no") > 10 * blocks, "faults without the settings"
