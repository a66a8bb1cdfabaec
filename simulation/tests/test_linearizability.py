"""The linearizability search: known histories, planted anomalies, and random histories against a
brute-force search.
"""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_cluster_simulation.histories.linearizability import (
    REFUSED,
    HistoryTooWideError,
    Register,
    find_anomalies,
)
from ponor_cluster_simulation.histories.operation import Operation


def write(value: int, called: float, returned: float | None, process: str = "w", key: str = "k") -> Operation:
    return Operation(process, key, "write", value, called, returned)


def read(
    value: int | None, called: float, returned: float | None, process: str = "r", key: str = "k"
) -> Operation:
    return Operation(process, key, "read", value, called, returned)


def test_sequential_operations_are_linearizable() -> None:
    assert find_anomalies([write(1, 0, 1), read(1, 2, 3), write(2, 4, 5), read(2, 6, 7)]) == []


def test_a_read_beside_a_write_may_see_either() -> None:
    for seen in (None, 1):
        assert find_anomalies([write(1, 0, 10), read(seen, 2, 3)]) == []


def test_a_stale_read_is_found() -> None:
    (found,) = find_anomalies([write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)])
    assert found.stuck == read(1, 4, 5)
    assert str(found).startswith("key k: no order explains [4, 5] r: read k 1 after")


def test_reads_that_go_back_are_found_though_each_alone_is_right() -> None:
    history = [write(1, 0, 100), read(1, 10, 11, "a"), read(None, 20, 21, "b")]
    assert find_anomalies(history[:2]) == []
    assert len(find_anomalies(history)) == 1


def test_a_lost_write_is_found() -> None:
    assert len(find_anomalies([write(1, 0, 1), read(None, 2, 3)])) == 1


def test_a_write_of_unknown_end_may_take_effect_late_or_never() -> None:
    assert find_anomalies([write(1, 0, None), read(None, 2, 3), read(1, 4, 5), read(1, 6, 7)]) == []
    assert find_anomalies([write(1, 0, None), read(None, 2, 3), read(None, 4, 5)]) == []
    assert len(find_anomalies([write(1, 0, None), read(1, 2, 3), read(None, 4, 5)])) == 1


def test_a_value_from_nowhere_is_found() -> None:
    assert len(find_anomalies([read(7, 0, 1)])) == 1


def test_operations_that_touch_in_time_overlap() -> None:
    assert find_anomalies([write(1, 0, 5), read(None, 5, 6)]) == []


def test_compare_and_set_replaces_only_the_expected_value() -> None:
    first = Operation("a", "k", "cas", 1, 0, 1, expected=None)
    second = Operation("b", "k", "cas", 2, 0, 1, expected=None)
    assert find_anomalies([first]) == []
    assert len(find_anomalies([first, second])) == 1


def test_keys_are_checked_separately() -> None:
    history = [
        write(1, 0, 1, key="a"),
        read(1, 2, 3, key="a"),
        write(1, 0, 1, key="b"),
        read(None, 2, 3, key="b"),
    ]
    assert [found.key for found in find_anomalies(history)] == ["b"]


def test_a_too_wide_history_is_an_error() -> None:
    history = [write(value, 0, 100, f"w{value}") for value in range(12)] + [read(99, 0, 100)]
    with pytest.raises(HistoryTooWideError, match="more than 500 configurations"):
        find_anomalies(history, configurations_max=500)


def real_history(chance: Random, clients: int, operations: int) -> list[Operation]:
    """A history of a correct register: each operation takes effect between its call and its return."""
    events: list[tuple[float, int, Operation]] = []
    for client in range(clients):
        time = chance.random()
        for _ in range(operations):
            length = chance.random() * 3
            effect, returned = time + chance.random() * length, time + length
            known = chance.random() < 0.9
            kind = "write" if chance.random() < 0.5 else "read"
            value = len(events) + 1
            events.append(
                (effect, value, Operation(f"c{client}", "k", kind, value, time, returned if known else None))
            )
            time = returned + chance.random()
    state, history = None, []
    for _, _, each in sorted(events, key=lambda event: event[:2]):
        if each.kind == "write":
            if each.returned is not None or chance.random() < 0.5:
                state = each.value
            history.append(each)
        elif each.returned is not None:
            history.append(Operation(each.process, each.key, "read", state, each.called, each.returned))
    return history


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30))
def test_a_history_of_a_real_register_passes(seed: int) -> None:
    assert find_anomalies(real_history(Random(seed), 5, 30)) == []


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30))
def test_a_real_history_with_one_read_made_stale_is_found(seed: int) -> None:
    """Two known, separate writes are between the value and the read that returns it again."""
    history = real_history(Random(seed), 4, 12)
    end = 1_000.0
    planted = [write(-1, end, end + 1), write(-2, end + 2, end + 3), read(-1, end + 4, end + 5)]
    assert find_anomalies(history) == []
    (found,) = find_anomalies([*history, *planted])
    assert found.stuck == planted[-1]


def explained_by_some_order(history: list[Operation]) -> bool:
    """The definition: try every subset with all returned operations, in every order that respects time."""
    known = [each for each in history if each.returned is not None]
    unknown = [each for each in history if each.returned is None and each.kind == "write"]
    for chosen in range(1 << len(unknown)):
        kept = known + [each for bit, each in enumerate(unknown) if chosen >> bit & 1]
        if any(is_explanation(order) for order in permutations(kept)):
            return True
    return False


def is_explanation(order: tuple[Operation, ...]) -> bool:
    for position, each in enumerate(order):
        if any(
            later.returned is not None and later.returned < each.called for later in order[position + 1 :]
        ):
            return False
    state: object = Register.initial
    for each in order:
        state = Register().step(state, each)
        if state is REFUSED:
            return False
    return True


small_operations = st.builds(
    lambda kind, value, called, length, known: Operation(
        "p", "k", kind, value, called, called + length if known or kind == "read" else None
    ),
    kind=st.sampled_from(["write", "read"]),
    value=st.integers(1, 2),
    called=st.integers(0, 6),
    length=st.integers(0, 4),
    known=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(history=st.lists(small_operations, max_size=5))
def test_the_search_agrees_with_brute_force(history: list[Operation]) -> None:
    assert (find_anomalies(history) == []) == explained_by_some_order(history)
