"""The check of append-only lists: a correct history has no anomaly, and each planted anomaly is
named.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from ponor_cluster_simulation.histories.append_lists import (
    Anomaly,
    AnomalyKind,
    Append,
    Observation,
    find_anomalies,
)


def true_history(seed: int, count: int = 30) -> tuple[list[Append], list[Observation]]:
    """Three processes append in turn. Some appends have no answer, and some of those were not
    stored.
    """
    chance = Random(seed)
    appends: list[Append] = []
    log: list[int] = []
    for value in range(count):
        process, called = f"p{chance.randrange(3)}", float(value * 2)
        if chance.random() < 0.8:
            log.append(value)
            appends.append(Append(process, "t-0", value, called, called + 1, len(log) - 1))
        else:
            if chance.random() < 0.5:
                log.append(value)
            appends.append(Append(process, "t-0", value, called))
    middle = chance.randrange(len(log) + 1)
    reads = [Observation("c0", "t-0", 0, tuple(log)), Observation("c1", "t-0", middle, tuple(log[middle:]))]
    return appends, reads


def kinds(found: list[Anomaly]) -> set[AnomalyKind]:
    return {each.kind for each in found}


def acknowledged(appends: list[Append]) -> list[Append]:
    return [each for each in appends if each.offset is not None]


@given(seed=st.integers(0, 1 << 30))
def test_a_true_history_is_clean(seed: int) -> None:
    assert find_anomalies(*true_history(seed)) == []


@given(seed=st.integers(0, 1 << 30))
def test_a_lost_value_is_found(seed: int) -> None:
    appends, reads = true_history(seed)
    lost = acknowledged(appends)[-1]
    assert lost.offset is not None
    shorter = [Observation("c0", "t-0", 0, reads[0].values[: lost.offset])]
    found = find_anomalies(appends, shorter)
    assert AnomalyKind.LOST in kinds(found)
    assert any(str(lost.value) in each.what for each in found)


@given(seed=st.integers(0, 1 << 30), data=st.data())
def test_a_duplicated_value_is_found(seed: int, data: st.DataObject) -> None:
    appends, reads = true_history(seed)
    twice = data.draw(st.sampled_from(reads[0].values))
    longer = [Observation("c0", "t-0", 0, (*reads[0].values, twice))]
    assert kinds(find_anomalies(appends, longer)) == {AnomalyKind.DUPLICATED}


@given(seed=st.integers(0, 1 << 30), data=st.data())
def test_reordered_values_are_found(seed: int, data: st.DataObject) -> None:
    appends, reads = true_history(seed)
    values = list(reads[0].values)
    at = data.draw(st.integers(0, len(values) - 2))
    values[at], values[at + 1] = values[at + 1], values[at]
    found = find_anomalies(appends, [Observation("c0", "t-0", 0, tuple(values))])
    both_unknown = all(each.offset is None for each in appends if each.value in values[at : at + 2])
    different = len({each.process for each in appends if each.value in values[at : at + 2]}) == 2
    # Two unacknowledged values of two processes may be in either order.
    assert kinds(found) == (set() if both_unknown and different else {AnomalyKind.REORDERED})


@given(seed=st.integers(0, 1 << 30))
def test_a_value_from_nowhere_is_found(seed: int) -> None:
    appends, reads = true_history(seed)
    assert kinds(find_anomalies(appends, [Observation("c0", "t-0", 0, (*reads[0].values, 999))])) == {
        AnomalyKind.PHANTOM
    }


@given(seed=st.integers(0, 1 << 30))
def test_an_offset_that_two_readers_saw_differently_is_found(seed: int) -> None:
    appends, reads = true_history(seed)
    other = replace(reads[1], first_offset=0, values=(reads[0].values[1],))
    assert AnomalyKind.CHANGED in kinds(find_anomalies(appends, [reads[0], other]))


def test_an_append_acknowledged_before_another_began_precedes_it() -> None:
    first = Append("a", "t-0", 1, called=0, returned=1)
    second = Append("b", "t-0", 2, called=2, returned=3)
    assert find_anomalies([first, second], [Observation("c", "t-0", 0, (1, 2))]) == []
    (found,) = find_anomalies([first, second], [Observation("c", "t-0", 0, (2, 1))])
    assert str(found) == "reordered: partition t-0: 1 was acknowledged before 2, and is at 1 behind 0"


def test_trimmed_values_are_not_lost() -> None:
    appends = [Append("a", "t-0", value, value, value + 0.5, value) for value in range(4)]
    tail = [Observation("c", "t-0", 2, (2, 3))]
    assert find_anomalies(appends, tail, {"t-0": 2}) == []
    assert kinds(find_anomalies(appends, tail)) == {AnomalyKind.LOST}


def test_partitions_are_checked_separately() -> None:
    appends = [Append("a", "t-0", 1, 0, 1, 0), Append("a", "t-1", 2, 2, 3, 0)]
    reads = [Observation("c", "t-0", 0, (1,))]
    assert [each.partition for each in find_anomalies(appends, reads)] == ["t-1"]
