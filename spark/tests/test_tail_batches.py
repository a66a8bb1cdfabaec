"""Tests of the rows in a fetch answer: no control batches, no aborted transactions, no partial batch at the
end.
"""

from __future__ import annotations

from ponor_kafka.messages.fetch import AbortedTransaction, PartitionData
from ponor_spark.tail import wanted_batches

from spark.tests.stored_batches import MS, Kept, Kind, Log

FIRST, SECOND = 11, 12


def transactional(producer_id: int) -> Kind:
    return Kind(producer_id=producer_id, transactional=True)


def marker(producer_id: int) -> Kind:
    return Kind(producer_id=producer_id, transactional=True, control=True)


def log() -> Log:
    """Offsets: 0-1 plain, 2 and 4 of an aborted transaction that ends at 5, 3 of a committed one, 6 plain of
    the same producer, 7 aborted again.
    """
    one = [Kept(0, MS, None, b"x")]
    log = Log()
    log.add([Kept(0, MS, None, b"x"), Kept(1, MS, None, b"x")])
    log.add(one, transactional(FIRST))
    log.add(one, transactional(SECOND))
    log.add(one, transactional(FIRST))
    log.add(one, marker(FIRST))
    log.add(one, Kind(producer_id=FIRST))
    log.add(one, transactional(FIRST))
    log.add(one, marker(FIRST))
    log.add(one, marker(SECOND))
    log.add(one)
    return log


def kept(answer: bytes, *aborted: tuple[int, int], end_offset: int = 1 << 40) -> tuple[list[int], int]:
    """Return base offsets of the batches with rows, and the end of the answer."""
    transactions = [AbortedTransaction(producer, first) for producer, first in aborted]
    reached = 0
    found: list[int] = []
    data = PartitionData(records=answer, aborted_transactions=transactions)
    for batch, base_offset, next_offset in wanted_batches(data, end_offset):
        reached = next_offset
        if batch is not None:
            found.append(base_offset)
    return found, reached


def test_aborted_transactions_end_at_their_markers() -> None:
    answer = b"".join(log().batches)
    assert kept(answer, (FIRST, 2), (FIRST, 7)) == ([0, 3, 6, 10], 11)
    assert kept(answer, (SECOND, 3)) == ([0, 2, 4, 6, 7, 10], 11)
    assert kept(answer) == ([0, 2, 3, 4, 6, 7, 10], 11)


def test_an_answer_may_begin_within_a_transaction() -> None:
    """A broker lists transactions that began before the fetched offset."""
    answer = b"".join(log().batches[3:])
    assert kept(answer, (FIRST, 2)) == ([6, 7, 10], 11)


def test_half_a_batch_is_left_to_the_next_fetch() -> None:
    batches = log().batches
    for cut in (1, 60, 61, len(batches[1]) - 1):
        assert kept(batches[0] + batches[1][:cut]) == ([0], 2)
    assert kept(b"") == ([], 0)


def test_nothing_behind_the_end_is_taken() -> None:
    answer = b"".join(log().batches)
    assert kept(answer, end_offset=4) == ([0, 2, 3], 4)
    assert kept(answer, end_offset=0) == ([], 0)
