"""Groups are stored in the partitions that Kafka's tools compute."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

from ponor_broker.coordination.partitioning import partition_for


def test_the_smallest_hash_has_no_absolute_value_and_goes_to_partition_0() -> None:
    assert partition_for("polygenelubricants", 50) == 0


def test_partitions_are_spread() -> None:
    assert {partition_for(f"group-{n}", 50) for n in range(1_000)} == set(range(50))


def test_long_names_are_not_cached() -> None:
    """A client may send any number of names of 32 KiB."""
    tracemalloc.start()
    try:
        for number in range(10):
            partition_for(f"{number:032767}", 50)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 100_000


def test_a_long_name_runs_no_more_python_lines_than_a_short_one() -> None:
    """The hash is compiled code. In Python, the hashes of 128 names of 32 KiB took 0.3 s, and one request may
    contain that many.
    """

    def lines_run(name: str) -> int:
        lines = 0

        def traced(_frame: Any, event: str, _: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return traced

        before = sys.gettrace()
        sys.settrace(traced)
        try:
            partition_for(name, 50)
        finally:
            sys.settrace(before)
        return lines

    assert lines_run("x" * 32_767) == lines_run("y")
