"""Reuse of memory by consecutive compactions."""

from __future__ import annotations

from s3stream.compaction.block_memory import BlockMemory


def test_released_memory_is_lent_again() -> None:
    memory = BlockMemory(100)
    with memory.lent(50) as first:
        assert len(first) == 50
        first[:4] = b"here"
    with memory.lent(100) as second:
        assert len(second) == 100
        assert bytes(second[:4]) == b"here"


def test_a_larger_request_replaces_the_mapping() -> None:
    memory = BlockMemory(100)
    with memory.lent(10), memory.lent(5_000) as larger:
        larger[:4] = b"here"
    with memory.lent(5_000) as again:
        assert len(again) == 5_000


def test_concurrent_borrowers_get_separate_memory() -> None:
    memory = BlockMemory()
    with memory.lent(10) as one, memory.lent(10) as other:
        one[:] = b"o" * 10
        other[:] = b"x" * 10
        assert bytes(one) == b"o" * 10


def test_a_failed_borrower_releases_the_memory() -> None:
    memory = BlockMemory()
    try:
        with memory.lent(4) as lent:
            lent[:] = b"here"
            raise KeyError
    except KeyError:
        pass
    with memory.lent(4) as again:
        assert bytes(again) == b"here"
