"""Judges the streams group of a run: waits until its members share all tasks, and searches their history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ponor_cluster_simulation.histories.groups import find_anomalies
from ponor_cluster_simulation.histories.transactions import Anomaly
from ponor_cluster_simulation.invariants.registry import LIVENESS
from ponor_cluster_simulation.run.run_world import RunWorld
from ponor_cluster_simulation.workload.shared_group import SESSION_TIMEOUT_MS

CONVERGED_S_MAX: Final = 60.0
CALM_S: Final = 1.5 * SESSION_TIMEOUT_MS / 1000
"""How long an assignment must stay: members that disappeared are removed within a session timeout."""
INVARIANTS: Final = {"two owners": 66, "fenced without a reason": 61}
"""Kind of an anomaly to its invariant."""


class StreamsJudgement:
    """The judgement of one run; without a streams group it has nothing to check."""

    def __init__(self, world: RunWorld) -> None:
        self._world = world
        self._checks = world.checks
        self._members = world.clients.streams_members
        self._shared = world.clients.streams_group
        self._calm_since_s = 0.0
        self._seen: object = None

    async def check(self) -> None:
        """Wait until each task has one living member, and search for anomalies.

        Raises:
            InvariantBrokenError: an invariant does not hold.
        """
        if not self._members:
            return
        history = self._shared.history
        self._require(find_anomalies(history))  # before the wait: an anomaly may be why the members wait
        await self._world.wait(67, "the members share all tasks", self._has_converged, s_max=CONVERGED_S_MAX)
        self._checks.counts[66] += len(history.uses)
        self._checks.counts[61] += self._shared.states["heartbeats answered"]
        self._require(find_anomalies(history))
        self._shared.is_over = True
        await self._world.wait(
            LIVENESS,
            "the streams group's members have left",
            lambda: all(each.is_finished for each in self._members),
            s_max=CONVERGED_S_MAX,
        )

    def _has_converged(self) -> bool:
        """Whether nothing has changed for longer than a session timeout, and each task has one member."""
        now_s = self._world.simulation.loop.time()
        seen = [(each.member, each.used, each.is_settled) for each in self._members]
        if seen != self._seen:
            self._seen, self._calm_since_s = seen, now_s
        used = sorted(task for each in self._members for task in each.used)
        return (
            used == list(range(self._shared.partitions))
            and all(each.is_settled for each in self._members)
            and now_s - self._calm_since_s >= CALM_S
        )

    def _require(self, anomalies: Iterable[Anomaly]) -> None:
        for anomaly in anomalies:
            self._checks.require(INVARIANTS[anomaly.kind], False, str(anomaly))
