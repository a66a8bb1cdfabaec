"""The search for faults in the logs of transactions: each fault is constructed and found."""

from __future__ import annotations

import pytest
from ponor_cluster_simulation.histories.transaction_logs import Batch, Marker, State, find_faults

A, B = ("a", 0), ("a", 1)
BOTH = frozenset({A, B})


def states() -> list[State]:
    """A committed transaction of generation 1, and an aborted one of generation 2."""
    return [
        State("x", "Empty", 7, 0),
        State("x", "Ongoing", 7, 0, frozenset({A})),
        State("x", "Ongoing", 7, 0, BOTH),
        State("x", "PrepareCommit", 7, 0, BOTH),
        State("x", "CompleteCommit", 7, 0),
        State("x", "Ongoing", 7, 0, frozenset({A})),
        State("x", "PrepareAbort", 7, 1, frozenset({A}), raises_epoch=True),
        State("x", "CompleteAbort", 7, 1),
    ]


def logs() -> dict[tuple[str, int], list[Batch | Marker]]:
    return {
        A: [Batch(0, 7, 0), Marker(2, 7, 0, 3, True), Batch(3, 7, 0), Marker(4, 7, 1, 3, False)],
        B: [Batch(0, 7, 0), Marker(1, 7, 0, 3, True)],
    }


def kinds(found_states: list[State], found_logs: dict[tuple[str, int], list[Batch | Marker]]) -> set[str]:
    return {each.kind for each in find_faults(found_states, found_logs, is_whole=True)}


def test_correct_logs_have_no_fault() -> None:
    assert find_faults(states(), logs(), is_whole=True) == []


def test_a_part_of_the_coordinators_log_has_no_fault() -> None:
    assert find_faults(states()[-2:], logs(), is_whole=False) == []


def test_a_state_may_be_repeated_by_a_rewrite() -> None:
    repeated = [state for state in states() for _ in range(2)]
    assert find_faults(repeated, logs(), is_whole=True) == []


@pytest.mark.parametrize("name", ["PrepareAbort", "CompleteAbort", "Ongoing", "Empty"])
def test_a_decision_does_not_change(name: str) -> None:
    changed = [*states()[:4], State("x", name, 7, 0, BOTH), *states()[4:]]
    assert "two outcomes" in kinds(changed, logs())


def test_a_completion_needs_a_decision() -> None:
    assert "two outcomes" in kinds(states()[:3] + states()[4:], logs())


@pytest.mark.parametrize(("is_whole", "raises_epoch"), [(True, False), (False, True)])
def test_a_marker_has_the_decided_outcome(is_whole: bool, raises_epoch: bool) -> None:
    changed, found = logs(), states()
    changed[B][-1] = Marker(1, 7, 0, 3, False)
    found[3] = found[3]._replace(raises_epoch=raises_epoch)
    assert [each.kind for each in find_faults(found, changed, is_whole=is_whole)] == ["two outcomes"]


def test_another_decision_of_an_epoch_may_have_been_removed_from_the_log() -> None:
    changed = logs()
    changed[A].insert(0, Marker(0, 7, 0, 3, False))
    assert find_faults(states(), changed, is_whole=False) == []


def test_a_marker_needs_a_decision() -> None:
    changed = logs()
    changed[B].append(Marker(2, 7, 5, 3, True))
    assert kinds(states(), changed) == {"two outcomes"}


def test_a_batch_of_an_older_epoch_is_found() -> None:
    changed = logs()
    changed[A] += [Batch(5, 7, 0), Marker(6, 7, 1, 3, False)]
    assert kinds(states(), changed) == {"epoch that falls"}


def test_a_marker_of_an_older_coordinator_is_found() -> None:
    changed = logs()
    changed[A].append(Marker(5, 7, 1, 2, False))
    assert kinds(states(), changed) == {"epoch that falls"}


def test_an_epoch_of_the_coordinator_does_not_fall() -> None:
    assert kinds([*states(), State("x", "Empty", 7, 0)], logs()) == {"epoch that falls"}


def test_a_batch_without_a_marker_is_an_open_transaction() -> None:
    changed = logs()
    changed[A].pop()
    assert kinds(states(), changed) == {"open transaction"}


def test_a_batch_outside_of_a_transaction_is_found() -> None:
    without_b = [state._replace(partitions=state.partitions - {B}) for state in states()]
    assert kinds(without_b, logs()) == {"unknown transaction"}
