"""Health of a process: its readiness conditions and the liveness of its event loop.

The modules of a service register conditions, and the event loop evaluates them several times per second.
Probes run on another thread (`probe_endpoint`) and read the last result and its age, so a stalled loop is
never reported as healthy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from ponor_runtime.clock import Clock

POLL_INTERVAL_S: Final = 0.5
"""Interval between two evaluations."""
READY_SILENCE_NS: Final = 3_000_000_000
"""The process is not ready if its loop has not evaluated the conditions for longer than this."""
LIVE_SILENCE_NS: Final = 15_000_000_000
"""A loop that has not run for longer than this is stuck and needs a restart. Every step of a service takes
less than a hundredth of this."""

Check: TypeAlias = Callable[[], str]
"""Runs on the loop, in microseconds; returns why the condition does not hold, or an empty string."""


class Unmet(NamedTuple):
    """A condition that does not hold, with the reason."""

    condition: str
    reason: str


class Verdict(NamedTuple):
    """Result of a probe: whether it passed, and why not."""

    is_good: bool
    lines: tuple[str, ...]


STARTING: Final = Unmet("start", "the service is still starting")
STOPPING: Final = Unmet("stop", "the service is stopping")


class Health:
    """Conditions of one process and the result of their last evaluation.

    `live` and `ready` are thread-safe; call everything else on the loop's thread.
    """

    def __init__(self) -> None:
        self._conditions: dict[str, Check] = {}
        self._services: dict[str, Check] = {}
        self._listeners: list[Callable[[tuple[Unmet, ...]], None]] = []
        self._phase: Unmet | None = STARTING
        # Replaced as a whole because other threads read it.
        self._seen: tuple[int | None, tuple[Unmet, ...]] = (None, (STARTING,))

    def require(self, condition: str, check: Check) -> None:
        """Add a readiness condition; a second call with the same name replaces the first."""
        self._conditions[condition] = check

    def require_for(self, service: str, check: Check) -> None:
        """Set the condition of one gRPC service; a service without a condition serves when the process is
        ready.
        """
        self._services[service] = check

    def announce(self) -> None:
        """Mark the service as started: from now on its conditions decide readiness."""
        if self._phase is STARTING:
            self._phase = None

    def stop(self) -> None:
        """Mark the service as stopping: it is no longer ready."""
        self._phase = STOPPING

    def on_change(self, listener: Callable[[tuple[Unmet, ...]], None]) -> None:
        """Call `listener` with the unmet conditions now and whenever the set of their names changes."""
        self._listeners.append(listener)
        listener(self.unmet())

    def unmet(self) -> tuple[Unmet, ...]:
        """Conditions that do not hold now."""
        if self._phase is not None:
            return (self._phase,)
        found = ((condition, check()) for condition, check in self._conditions.items())
        return tuple(Unmet(condition, reason) for condition, reason in found if reason)

    def serves(self, service: str) -> bool:
        """Whether a gRPC service of this process serves now; the empty name means the whole process."""
        check = self._services.get(service)
        return not (check() if check is not None else self.unmet())

    def look(self, now_ns: int) -> None:
        """Evaluate the conditions and record that the loop runs."""
        unmet, before = self.unmet(), self._seen[1]
        self._seen = (now_ns, unmet)
        if [each.condition for each in unmet] != [each.condition for each in before]:
            for listener in self._listeners:
                listener(unmet)

    async def watch(self, clock: Clock) -> None:
        """Evaluate the conditions forever."""
        while True:
            self.look(clock.monotonic_ns())
            await clock.sleep(POLL_INTERVAL_S)

    def live(self, now_ns: int) -> Verdict:
        """Whether the loop runs. If not, a restart helps."""
        seen_ns = self._seen[0]
        if seen_ns is not None and now_ns - seen_ns > LIVE_SILENCE_NS:
            return Verdict(False, (_stalled(now_ns - seen_ns),))
        return Verdict(True, ("live",))

    def ready(self, now_ns: int) -> Verdict:
        """Whether every condition held at the last evaluation, and that evaluation is recent."""
        seen_ns, unmet = self._seen
        if seen_ns is not None and now_ns - seen_ns > READY_SILENCE_NS:
            return Verdict(False, (_stalled(now_ns - seen_ns),))
        if unmet:
            return Verdict(False, tuple(f"{each.condition}: {each.reason}" for each in unmet))
        return Verdict(True, ("ready",))


def _stalled(age_ns: int) -> str:
    return f"loop: the event loop has not run for {age_ns / 1e9:.1f} s"
