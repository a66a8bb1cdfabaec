"""Groups are stored in the partitions that Kafka's tools compute. The hashes are Java's
`String.hashCode()`.
"""

from __future__ import annotations

import tracemalloc

import pytest
from ponor_broker.coordination.partitioning import java_string_hash, partition_for


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("console-consumer-12345", None),
        ("polygenelubricants", -(1 << 31)),
        ("Aa", 2112),
        ("BB", 2112),
        ("é", 233),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_java_hash(text: str, hashed: int | None) -> None:
    encoded = text.encode("utf-16-be")
    units = [int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2)]
    by_definition = sum(unit * 31**power for power, unit in enumerate(reversed(units)))
    wrapped = (by_definition + (1 << 31)) % (1 << 32) - (1 << 31)
    assert java_string_hash(text) == wrapped
    if hashed is not None:
        assert wrapped == hashed


def test_the_smallest_hash_has_no_absolute_value_and_goes_to_partition_0() -> None:
    assert partition_for("polygenelubricants", 50) == 0


def test_partitions_are_spread() -> None:
    assert {partition_for(f"group-{n}", 50) for n in range(1_000)} == set(range(50))


def test_long_names_are_not_kept() -> None:
    """A client may send any number of names of 32 KiB."""
    tracemalloc.start()
    try:
        for number in range(10):
            partition_for(f"{number:032767}", 50)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 100_000
