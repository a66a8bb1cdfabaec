"""Is what the metadata clients saw linearizable?

What lives here: the object they used, a key that is written once, as a sequential model, and the translation of their calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from ponor_simulation.histories.linearizability import REFUSED, find_anomalies
from ponor_simulation.histories.operation import Operation

from tests.e2e.load.metadata_clients import Call


class WriteOnce:
    """`put` writes if there is nothing, and answers (what it brought, what is there now, whether it wrote); `read` answers what is there."""

    initial: Hashable = None

    def step(self, state: Hashable, operation: Operation) -> Any:
        if operation.kind == "read":
            return state if operation.value == state else REFUSED
        brought, held, created = operation.value
        if state is None:
            return brought if created and held == brought else REFUSED
        return state if not created and held == state else REFUSED

    def without_effect(self, operations: Sequence[Operation]) -> set[int]:
        """None: every put of these histories was answered, because a session asks until it is."""
        assert all(operation.returned is not None for operation in operations)
        return set()


def judge_linearizable(calls: Iterable[Call]) -> None:
    """Raises AssertionError with the key and the answers that no order explains."""
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
