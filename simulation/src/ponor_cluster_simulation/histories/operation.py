"""One operation as its client saw it, and how operations travel.

What lives here: the shape, and JSON lines of it:

    {"process": "c1", "key": "a", "kind": "write", "value": 7, "called": 12.5, "returned": 13.0}

`value` is what was written, or what was read. `returned` null: the client does not know whether, or when, it took effect; such reads are of no use and are left
out. Times are numbers on one clock. An operation that certainly took no effect does not belong into a history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Operation:
    """See the module. `value` must be hashable; `expected` is for compare-and-set alone."""

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
    """A line each, without its end."""
    for operation in operations:
        yield json.dumps(asdict(operation))


def from_json_lines(lines: Iterable[str]) -> list[Operation]:
    """Blank lines are passed over.

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
