"""The clients' history of a log: lost, doubled and moved records, and acknowledgements without an offset."""

from __future__ import annotations

import pytest
from ponor_cluster_simulation.workload.history import ClusterHistory, Value


def values(*numbers: int) -> list[Value]:
    return [Value("p", 0, number) for number in numbers]


@pytest.fixture
def history() -> ClusterHistory:
    """Three batches: at offset 0, without an offset, at offset 3."""
    history = ClusterHistory(sent={("p", 0): 4})
    history.acknowledge(Value("p", 0, 0), 1, 0)
    history.acknowledge(Value("p", 0, 1), 2, None)
    history.acknowledge(Value("p", 0, 3), 1, 3)
    return history


def test_a_batch_without_an_offset_may_be_anywhere_in_its_order(history: ClusterHistory) -> None:
    history.check_log(0, values(0, 1, 2, 3))


@pytest.mark.parametrize(
    ("log", "complaint"),
    [
        ((0, 3), "but number 1 was expected"),
        ((0, 1, 2), "lost: p sent 4 records to partition 0, which has 3"),
        ((0, 1, 1, 2, 3), "but number 2 was expected"),
        ((0, 2, 1, 3), "but number 1 was expected"),
    ],
    ids=["gap", "short", "twice", "order"],
)
def test_a_batch_without_an_offset_must_be_there_once_and_in_order(
    history: ClusterHistory, log: tuple[int, ...], complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        history.check_log(0, values(*log))


def test_an_acknowledged_offset_never_changes() -> None:
    history = ClusterHistory(sent={("p", 0): 1})
    history.acknowledge(Value("p", 0, 0), 1, 7)
    with pytest.raises(AssertionError, match="was acknowledged at 7 and is at 0"):
        history.check_log(0, values(0))


def test_a_finished_log_has_acknowledged_values_only() -> None:
    history = ClusterHistory(sent={("p", 0): 1})
    with pytest.raises(AssertionError, match="was never acknowledged"):
        history.check_log(0, values(0))
