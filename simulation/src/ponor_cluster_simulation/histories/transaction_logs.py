"""The search for anomalies in the logs of transactions: the coordinator's records, and the batches and
markers of partitions.

The rules are those invariants of docs/design/transactions.md whose violation clients cannot see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ponor_cluster_simulation.histories.transactions import Anomaly

TopicPartition: TypeAlias = tuple[str, int]
ONGOING: Final = "Ongoing"
PREPARE: Final = "Prepare"
COMPLETE: Final = "Complete"


class State(NamedTuple):
    """A record of the coordinator; `name` is Kafka's name of the state.

    `raises_epoch`: each transaction has its own epoch (KIP-890), so an epoch has at most one decision.
    """

    transactional_id: str
    name: str
    producer_id: int
    epoch: int
    partitions: frozenset[TopicPartition] = frozenset()
    raises_epoch: bool = False


class Batch(NamedTuple):
    """A transactional batch."""

    offset: int
    producer_id: int
    epoch: int


class Marker(NamedTuple):
    """The end of a transaction."""

    offset: int
    producer_id: int
    epoch: int
    coordinator_epoch: int
    is_commit: bool


Logs: TypeAlias = Mapping[TopicPartition, Sequence[Batch | Marker]]


def find_faults(states: Sequence[State], logs: Logs, *, is_whole: bool) -> list[Anomaly]:
    """Compare the logs at the end of a run, when no transaction is open.

    Args:
        states: the coordinator's records; those of one id are in the order of the log.
        logs: batches and markers of each partition, in order.
        is_whole: no state was removed from the coordinator's log.
    """
    return [
        *_outcomes(states),
        *_markers(states, logs, is_whole=is_whole),
        *_epochs(logs),
        *_open(logs),
        *(_strangers(states, logs) if is_whole else ()),
    ]


def _outcomes(states: Sequence[State]) -> Iterator[Anomaly]:
    """Find decisions that are changed, and completions without a decision."""
    before: dict[str, State] = {}
    for state in states:
        previous = before.get(state.transactional_id)
        before[state.transactional_id] = state
        if previous is None:
            continue
        decided = previous.name.removeprefix(PREPARE) if previous.name.startswith(PREPARE) else ""
        if decided:
            is_wrong = state.name not in {PREPARE + decided, COMPLETE + decided}
        else:
            is_wrong = state.name.startswith(COMPLETE) and state.name != previous.name
        if is_wrong:
            yield Anomaly("two outcomes", f"{state} follows {previous}")
        if state.producer_id == previous.producer_id and state.epoch < previous.epoch:
            yield Anomaly("epoch that falls", f"{state} follows {previous}")


def _markers(states: Sequence[State], logs: Logs, *, is_whole: bool) -> Iterator[Anomaly]:
    """Find markers whose outcome is not the coordinator's decision, and markers without a decision."""
    decisions: dict[tuple[int, int], set[bool]] = defaultdict(set)
    for state in states:
        # Without the whole log, other decisions of the same epoch may be missing.
        if state.name.startswith(PREPARE) and (is_whole or state.raises_epoch):
            decisions[state.producer_id, state.epoch].add(state.name.endswith("Commit"))
    for where, log in logs.items():
        for one in log:
            if isinstance(one, Marker):
                decided = decisions.get((one.producer_id, one.epoch))
                if one.is_commit not in (decided or ()) and (is_whole or decided):
                    yield Anomaly("two outcomes", f"{one} of {where}, but the coordinator decided {decided}")


def _epochs(logs: Logs) -> Iterator[Anomaly]:
    """Find batches and markers that come after a newer epoch of their producer or coordinator."""
    for where, log in logs.items():
        newest: dict[int, tuple[int, int]] = {}
        for one in log:
            epoch, coordinator_epoch = newest.get(one.producer_id, (-1, -1))
            if one.epoch < epoch:
                yield Anomaly("epoch that falls", f"{one} of {where} follows epoch {epoch}")
            if isinstance(one, Marker):
                if one.coordinator_epoch < coordinator_epoch:
                    yield Anomaly(
                        "epoch that falls", f"{one} of {where} follows coordinator epoch {coordinator_epoch}"
                    )
                coordinator_epoch = max(coordinator_epoch, one.coordinator_epoch)
            newest[one.producer_id] = max(epoch, one.epoch), coordinator_epoch


def _open(logs: Logs) -> Iterator[Anomaly]:
    """Find batches without a marker."""
    for where, log in logs.items():
        last = {one.producer_id: one for one in log}
        for one in last.values():
            if isinstance(one, Batch):
                yield Anomaly("open transaction", f"{one} of {where} has no marker")


def _strangers(states: Sequence[State], logs: Logs) -> Iterator[Anomaly]:
    """Find batches in partitions that the coordinator did not add to a transaction of the batch's epoch."""
    known = {
        (state.producer_id, state.epoch, where)
        for state in states
        if state.name == ONGOING
        for where in state.partitions
    }
    for where, log in logs.items():
        for one in log:
            if isinstance(one, Batch) and (one.producer_id, one.epoch, where) not in known:
                yield Anomaly(
                    "unknown transaction", f"{one}: the coordinator did not add {where} to its transaction"
                )
