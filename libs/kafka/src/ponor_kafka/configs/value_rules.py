"""Rules for the values of settings, with Kafka's error messages. `values` parses values by type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

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


_DURATION_PREFIX: Final = "by_duration:"
_DURATION: Final = re.compile(
    r"(?P<sign>[+-]?)P(?=[0-9+-]|T[0-9+-])(?:(?P<days>[+-]?[0-9]{1,10})D)?"
    r"(?:T(?=[0-9+-])(?:(?P<hours>[+-]?[0-9]{1,12})H)?(?:(?P<minutes>[+-]?[0-9]{1,14})M)?"
    r"(?:(?P<seconds>[+-]?[0-9]{1,15}(?:[.,][0-9]{0,9})?)S)?)?",
    re.IGNORECASE,
)
_UNIT_MS: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000}


@dataclass(frozen=True, slots=True)
class ShareReset:
    """`earliest`, `latest`, or `by_duration:` and an ISO 8601 duration that is not negative."""

    def problem(self, value: Value) -> str | None:
        text = str(value)
        if text in {"earliest", "latest"}:
            return None
        duration_ms = reset_duration_ms(text)
        if duration_ms is not None and duration_ms >= 0:
            return None
        return (
            f"Invalid value `{text}` for configuration share.auto.offset.reset. The value must be either"
            " 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
        )

    def __str__(self) -> str:
        return "earliest, latest, by_duration:PnDTnHnMn.nS"


def reset_duration_ms(text: str) -> int | None:
    """Return the duration of `by_duration:PnDTnHnMn.nS` in ms; None for any other text, and for a duration
    without the form of java.time.Duration.
    """
    found = _DURATION.fullmatch(text.removeprefix(_DURATION_PREFIX))
    if not text.startswith(_DURATION_PREFIX) or found is None:
        return None
    parts = found.groupdict()
    total_ms = sum(int(parts[name] or 0) * unit_ms for name, unit_ms in _UNIT_MS.items())
    whole, _, fraction = (parts["seconds"] or "0").replace(",", ".").partition(".")
    part_ms = int(fraction.ljust(3, "0")[:3])
    total_ms += int(whole) * 1_000 + (-part_ms if whole.startswith("-") else part_ms)
    return -total_ms if parts["sign"] == "-" else total_ms


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
