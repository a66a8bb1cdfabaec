"""Health of a process: the conditions under which it is ready, and whether its event loop runs.

The parts of a service contribute conditions. The loop evaluates them several times per second and keeps the outcome where other threads can read it. A probe is
answered on a thread of its own (`probe_endpoint`), from the last outcome and its age: a loop that stands still cannot report that all is well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from ponor_runtime.clock import Clock

LOOK_S: Final = 0.5
"""Between two evaluations."""
READY_SILENCE_NS: Final = 3_000_000_000
"""A loop that has not evaluated the conditions for longer is not ready."""
LIVE_SILENCE_NS: Final = 15_000_000_000
"""A loop that has not run for longer is stuck: a restart helps. No step of a service may take a hundredth of this."""

Check: TypeAlias = Callable[[], str]
"""Evaluated on the loop, in microseconds; returns why the condition does not hold, or an empty string."""


class Unmet(NamedTuple):
    """A condition that does not hold, and why."""

    condition: str
    reason: str


class Verdict(NamedTuple):
    """What a probe is answered."""

    is_good: bool
    lines: tuple[str, ...]


STARTING: Final = Unmet("start", "the service is still starting")
STOPPING: Final = Unmet("stop", "the service is stopping")


class Health:
    """Conditions of one process, and the last outcome of their evaluation.

    `live` and `ready` may be called on any thread, everything else on the loop's.
    """

    def __init__(self) -> None:
        self._conditions: dict[str, Check] = {}
        self._services: dict[str, Check] = {}
        self._listeners: list[Callable[[tuple[Unmet, ...]], None]] = []
        self._phase: Unmet | None = STARTING
        # One value, replaced as a whole: another thread reads it.
        self._seen: tuple[int | None, tuple[Unmet, ...]] = (None, (STARTING,))

    def require(self, condition: str, check: Check) -> None:
        """Add a condition of readiness; a second call with the same name replaces the first."""
        self._conditions[condition] = check

    def require_for(self, service: str, check: Check) -> None:
        """State when one gRPC service of this process serves; others serve when the process is ready."""
        self._services[service] = check

    def announce(self) -> None:
        """The service has bound its addresses and serves: from now on its conditions decide."""
        if self._phase is STARTING:
            self._phase = None

    def stop(self) -> None:
        """The service was told to stop: it is not ready any more."""
        self._phase = STOPPING

    def on_change(self, listener: Callable[[tuple[Unmet, ...]], None]) -> None:
        """Call `listener` with what does not hold, now and whenever the set of unmet conditions changes."""
        self._listeners.append(listener)
        listener(self.unmet())

    def unmet(self) -> tuple[Unmet, ...]:
        """What does not hold now."""
        if self._phase is not None:
            return (self._phase,)
        found = ((condition, check()) for condition, check in self._conditions.items())
        return tuple(Unmet(condition, reason) for condition, reason in found if reason)

    def serves(self, service: str) -> bool:
        """Whether a gRPC service of this process serves now; the empty name is the whole process."""
        check = self._services.get(service)
        return not (check() if check is not None else self.unmet())

    def look(self, now_ns: int) -> None:
        """Evaluate the conditions, and note that the loop runs."""
        unmet, before = self.unmet(), self._seen[1]
        self._seen = (now_ns, unmet)
        if [each.condition for each in unmet] != [each.condition for each in before]:
            for listener in self._listeners:
                listener(unmet)

    async def watch(self, clock: Clock) -> None:
        """Evaluate the conditions for ever."""
        while True:
            self.look(clock.monotonic_ns())
            await clock.sleep(LOOK_S)

    def live(self, now_ns: int) -> Verdict:
        """Whether the loop runs. False means that a restart helps."""
        seen_ns = self._seen[0]
        if seen_ns is not None and now_ns - seen_ns > LIVE_SILENCE_NS:
            return Verdict(False, (_stalled(now_ns - seen_ns),))
        return Verdict(True, ("live",))

    def ready(self, now_ns: int) -> Verdict:
        """Whether every condition held a moment ago."""
        seen_ns, unmet = self._seen
        if seen_ns is not None and now_ns - seen_ns > READY_SILENCE_NS:
            return Verdict(False, (_stalled(now_ns - seen_ns),))
        if unmet:
            return Verdict(False, tuple(f"{each.condition}: {each.reason}" for each in unmet))
        return Verdict(True, ("ready",))


def _stalled(age_ns: int) -> str:
    return f"loop: the event loop has not run for {age_ns / 1e9:.1f} s"
