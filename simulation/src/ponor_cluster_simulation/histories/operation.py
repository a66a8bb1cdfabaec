"""One operation as its client observed it, and its JSON line:

    {"process": "c1", "key": "a", "kind": "write", "value": 7, "called": 12.5, "returned": 13.0}

`value` was written or read. With `returned` null the client does not know whether the operation
took effect; such reads are omitted. Times are numbers of one clock. An operation that had no effect
is not in a history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `value` must be hashable; `expected` is for compare-and-set only."""

    process: str
    key: str
    kind: str
    value: Any
    called: float
    returned: float | None
    expected: Any = None

    def __post_init__(self) -> None:
        assert self.returned is None or self.returned >= self.called, f"{self} returned before it was called"

    def __str__(self) -> str:
        until = "?" if self.returned is None else f"{self.returned:g}"
        was = f" if {self.expected!r}" if self.kind == "cas" else ""
        return f"[{self.called:g}, {until}] {self.process}: {self.kind} {self.key} {self.value!r}{was}"


def to_json_lines(operations: Iterable[Operation]) -> Iterator[str]:
    """Encode operations, one line each, without line ends."""
    for operation in operations:
        yield json.dumps(asdict(operation))


def from_json_lines(lines: Iterable[str]) -> list[Operation]:
    """Decode operations; blank lines are skipped.

    Raises:
        ValueError: a line is no operation; the message names it.
    """
    operations = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            operations.append(Operation(**json.loads(line)))
        except (TypeError, AssertionError, json.JSONDecodeError) as wrong:
            raise ValueError(f"line {number} of the history is no operation: {wrong}") from wrong
    return operations
