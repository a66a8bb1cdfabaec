"""Linearizability check of the metadata clients' histories.

The sequential model is a key that is written once; calls are translated to operations on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from ponor_cluster_simulation.histories.linearizability import REFUSED, find_anomalies
from ponor_cluster_simulation.histories.operation import Operation

from tests.e2e.load.metadata_clients import Call


class WriteOnce:
    """`put` writes if there is no value and returns (own value, current value, whether it wrote).

    `read` returns the value.
    """

    initial: Hashable = None

    def step(self, state: Hashable, operation: Operation) -> Any:
        if operation.kind == "read":
            return state if operation.value == state else REFUSED
        brought, held, created = operation.value
        if state is None:
            return brought if created and held == brought else REFUSED
        return state if not created and held == state else REFUSED

    def without_effect(self, operations: Sequence[Operation]) -> set[int]:
        """None: sessions retry, so every put in these histories has a response."""
        assert all(operation.returned is not None for operation in operations)
        return set()


def judge_linearizable(calls: Iterable[Call]) -> None:
    """Raise AssertionError with the key and the responses that no order explains."""
    operations = [
        Operation(
            process=str(call.client),
            key=call.key,
            kind=call.kind,
            value=call.held if call.kind == "read" else (call.value, call.held, call.created),
            called=call.begin_ns,
            returned=call.end_ns,
        )
        for call in calls
    ]
    assert operations, "an empty history proves nothing"
    found = find_anomalies(operations, WriteOnce())
    assert not found, "\n".join(map(str, found))
