"""Memory that is lent to one compaction after the other."""

from __future__ import annotations

from s3stream.compaction.block_memory import BlockMemory


def test_what_was_touched_once_is_lent_again() -> None:
    memory = BlockMemory(100)
    with memory.lent(50) as first:
        assert len(first) == 50
        first[:4] = b"here"
    with memory.lent(100) as second:
        assert len(second) == 100
        assert bytes(second[:4]) == b"here"


def test_more_than_there_is_is_mapped_anew_and_kept() -> None:
    memory = BlockMemory(100)
    with memory.lent(10), memory.lent(5_000) as larger:
        larger[:4] = b"here"
    with memory.lent(5_000) as again:
        assert len(again) == 5_000


def test_two_at_a_time_do_not_share() -> None:
    memory = BlockMemory()
    with memory.lent(10) as one, memory.lent(10) as other:
        one[:] = b"o" * 10
        other[:] = b"x" * 10
        assert bytes(one) == b"o" * 10


def test_a_failure_gives_it_back() -> None:
    memory = BlockMemory()
    try:
        with memory.lent(4) as lent:
            lent[:] = b"here"
            raise KeyError
    except KeyError:
        pass
    with memory.lent(4) as again:
        assert bytes(again) == b"here"
