"""Gauges of the age and the number of garbage objects. They rise if no collector deletes the objects.

Only the leader exports values, because the cluster clock runs only there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ponor_metadata.nouns.objects import OBJECTS, OBJECTS_WAITING, ObjectRow, ObjectState
from ponor_runtime.telemetry import Telemetry

from ponor_controller.kernel.proposer import Proposer

UPDATE_S: Final = 5.0
STATES: Final = {ObjectState.DESTROYED: "destroyed", ObjectState.PREPARED: "prepared"}


class GarbageAges:
    """A step of a `LeaderDuty`; proposes nothing."""

    def __init__(self, proposer: Proposer, telemetry: Telemetry) -> None:
        self._proposer = proposer
        self._ages_ms = dict.fromkeys(STATES, 0)
        self._numbers = dict.fromkeys(STATES, 0)
        for state, name in STATES.items():
            telemetry.gauge(
                "ponor_garbage_oldest_age_seconds", self._shown(self._ages_ms, state, 1_000), state=name
            )
            telemetry.gauge("ponor_garbage_objects", self._shown(self._numbers, state), state=name)

    def step(self) -> float:
        """Update the gauges, ages from the oldest row of each state. Returns the seconds until the next
        step.
        """
        objects, now_ms = self._proposer.view.image[OBJECTS], self._proposer.now_ms()
        for state in STATES:
            waiting = objects.find(OBJECTS_WAITING, state)
            oldest = next(iter(waiting), None)
            self._ages_ms[state] = 0 if oldest is None else max(0, now_ms - due_since_ms(oldest))
            self._numbers[state] = len(waiting)
        return UPDATE_S

    def _shown(
        self, numbers: dict[ObjectState, int], state: ObjectState, per_unit: int = 1
    ) -> Callable[[], float]:
        return lambda: numbers[state] / per_unit if self._proposer.leads else 0


def due_since_ms(row: ObjectRow) -> int:
    """When an object became garbage: the time of its destruction, or the expiry of its reservation."""
    return row.expires_at_ms if row.state is ObjectState.PREPARED else row.destroyed_at_ms
