"""Subscriptions by regular expression: which topics match (RE2 syntax, full match)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.turns import Steps

from ponor_broker.coordination.linear_pattern import LinearPattern, PatternError
from ponor_broker.groups.outcome import HeartbeatRefusedError

MATCHES_PER_STEP: Final = 200
"""Topics that are compared with an expression in one step."""
STEPS_AT_ONCE: Final = 4
"""Steps that an event makes itself: a few milliseconds."""
REFRESH_MS: Final = 10_000
"""An expression is resolved again at most once in this time."""


Matches: TypeAlias = dict[str, frozenset[str]]
"""Names of the matching topics by expression."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A resolution that began at a version of the topics."""

    version: int
    steps: Steps[Matches]


def check(expression: str) -> None:
    """Compile an expression.

    Raises:
        HeartbeatRefusedError: it is invalid, with Kafka's message.
    """
    try:
        LinearPattern(expression)
    except PatternError as error:
        raise HeartbeatRefusedError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {error}.",
        ) from None


def resolve(expressions: Iterable[str], names: Sequence[str]) -> Steps[Matches]:
    """Compare each expression with each name. An expression that another coordinator accepted and this one
    does not matches nothing.
    """
    found: Matches = {}
    for expression in expressions:
        matching: set[str] = set()
        try:
            pattern = LinearPattern(expression)
        except PatternError:
            found[expression] = frozenset()
            continue
        for number, name in enumerate(names, 1):
            if (yield from pattern.matches(name)):
                matching.add(name)
            if number % MATCHES_PER_STEP == 0:
                yield
        found[expression] = frozenset(matching)
        yield
    return found


def resolve_at_once(expressions: Iterable[str], names: Sequence[str]) -> Matches | None:
    """As `resolve`, within one event; None if it takes more than `STEPS_AT_ONCE` steps."""
    steps = resolve(expressions, names)
    for _ in range(STEPS_AT_ONCE + 1):
        try:
            next(steps)
        except StopIteration as done:
            matches: Matches = done.value
            return matches
    return None
