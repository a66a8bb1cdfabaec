"""One operation as its client observed it.

`value` was written or read. If `returned` is None, the client does not know whether the operation took
effect; a history omits such reads. All times are from one clock. A history does not contain operations that
had no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
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
