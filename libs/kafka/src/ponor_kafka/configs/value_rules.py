"""Rules for the values of settings, with Kafka's error messages. `values` parses values by type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Value: TypeAlias = "bool | int | float | str | list[str]"


class ValueRule(Protocol):
    """A rule for parsed values."""

    def problem(self, value: Value) -> str | None:
        """Return Kafka's error message, or None for a valid value."""
        ...

    def __str__(self) -> str:
        """The rule as shown in the compatibility table."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """A number from `low` to `high`, or equal to `also`."""

    low: float
    high: float | None = None
    also: int | None = None

    def problem(self, value: Value) -> str | None:
        assert isinstance(value, int | float), "bounds are for numbers"
        if self.also is not None:
            fits = value == self.also or self.low <= value <= (self.high or value)
            return (
                None if fits else f"Value must be between {self.low} and {self.high} or equal to {self.also}"
            )
        if value < self.low:
            return f"Value must be at least {self.low}"
        if self.high is not None and value > self.high:
            return f"Value must be no more than {self.high}"
        return None

    def __str__(self) -> str:
        text = f"{self.low}..{'' if self.high is None else self.high}"
        return text if self.also is None else f"{text} or {self.also}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the given words; for a list, every item must be one of them."""

    words: tuple[str, ...]
    any_case: bool = False

    def problem(self, value: Value) -> str | None:
        items: Sequence[object] = value if isinstance(value, list) else [value]
        for item in items:
            text = str(item).upper() if self.any_case else str(item)
            if text not in self.words:
                how = " (case insensitive)" if self.any_case else ""
                return f"String must be one of{how}: {', '.join(self.words)}"
        return None

    def __str__(self) -> str:
        return ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """A non-empty text, if set."""

    def problem(self, value: Value) -> str | None:
        return None if value else "String must be non-empty"

    def __str__(self) -> str:
        return "not empty"


@dataclass(frozen=True, slots=True)
class FilledItems:
    """A list without empty items."""

    def problem(self, value: Value) -> str | None:
        assert isinstance(value, list), "items are a list's"
        return None if all(value) else "Configuration values must not be empty."

    def __str__(self) -> str:
        return "items not empty"


_REPLICA = re.compile(r"[0-9]+:[0-9]+")


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """'*' alone, or PARTITION:BROKER pairs."""

    def problem(self, value: Value) -> str | None:
        assert isinstance(value, list), "throttled replicas are a list"
        if value == ["*"] or all(_REPLICA.fullmatch(item) for item in value):
            return None
        return (
            "must be the literal '*' or a list of replicas:"
            " [partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )

    def __str__(self) -> str:
        return "* or partition:broker, …"
