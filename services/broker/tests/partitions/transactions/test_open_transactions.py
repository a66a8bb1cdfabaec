"""Open and ending transactions against a model, and the cost of many that end together."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

import pytest
from ponor_broker.partitions.transactions.open_transactions import (
    ALL_STABLE,
    NO_OFFSET,
    Ending,
    OpenTransactions,
)


@pytest.mark.parametrize("seed", range(50))
def test_the_smallest_offset_is_that_of_a_search(seed: int) -> None:
    choose = random.Random(seed)
    transactions = OpenTransactions()
    opened: dict[int, int] = {}
    ending: list[Ending] = []
    offset, confirmed = 0, 0
    undo: list[tuple[int, int, int]] = []  # offset, producer, first offset before the append
    for _ in range(200):
        producer_id = choose.randrange(12)
        match choose.choice(("begin", "end", "end", "confirm", "roll back")):
            case "begin" if producer_id not in opened:
                undo.append((offset, producer_id, NO_OFFSET))
                opened[producer_id] = offset
                transactions.begin(producer_id, offset)
                offset += 1
            case "end" if producer_id in opened:
                undo.append((offset, producer_id, opened[producer_id]))
                ending.append(Ending(offset, opened.pop(producer_id)))
                transactions.end(producer_id, offset)
                offset += 1
            case "confirm":
                confirmed = choose.randint(confirmed, offset)
                ending = [one for one in ending if one.marker_offset >= confirmed]
                transactions.confirm(confirmed)
            case "roll back":
                # No append follows a failed one, so all are undone.
                while undo and undo[-1][0] >= confirmed:
                    base_offset, undone, first_offset = undo.pop()
                    opened.pop(undone, None)
                    ending = [one for one in ending if one.marker_offset != base_offset]
                    if first_offset != NO_OFFSET:
                        opened[undone] = first_offset
                    transactions.roll_back(base_offset, undone, first_offset)
                    assert transactions.first_unstable == _smallest(opened, ending)
                transactions.reset(opened)
                ending.clear()
                undo.clear()
                confirmed = offset
        assert transactions.first_unstable == _smallest(opened, ending)


def _smallest(opened: dict[int, int], ending: list[Ending]) -> int:
    return min([*opened.values(), *(one.first_offset for one in ending)], default=ALL_STABLE)


class Counted(deque[Ending]):
    """Counts the transactions that searches visit."""

    visited = 0

    def __iter__(self) -> Iterator[Ending]:
        for one in super().__iter__():
            self.visited += 1
            yield one


def test_transactions_that_end_together_are_not_searched_for_each() -> None:
    """A group commit confirms the markers of thousands of producers in one turn of the event loop."""
    count = 1_000
    transactions = OpenTransactions()
    transactions.ending = ending = Counted()
    for number in range(count):
        transactions.begin(number, number)
    for number in range(count):
        transactions.end(number, count + number)
        transactions.begin(count + number, 2 * count + number)
    for number in range(count):
        transactions.confirm(count + number + 1)
    assert transactions.first_unstable == 2 * count
    assert ending.visited <= count
