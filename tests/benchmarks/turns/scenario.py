"""The registry of scenarios: each is a coroutine that sets up, starts the recorder, works, and stops the
recorder.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.benchmarks.turns.turn_recorder import TurnRecorder

Body: TypeAlias = Callable[[TurnRecorder], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. `what` names the work and its size."""

    name: str
    what: str
    body: Body


SCENARIOS: Final[dict[str, Scenario]] = {}


def scenario(name: str, what: str) -> Callable[[Body], Body]:
    """Register a coroutine function as a scenario. A module with scenarios is imported by `main`."""

    def register(body: Body) -> Body:
        assert name not in SCENARIOS, f"scenario {name} is registered twice"
        SCENARIOS[name] = Scenario(name, what, body)
        return body

    return register
