"""Judges the share group of a run: waits until every record is final, and searches the members' history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.share_groups import find_anomalies
from ponor_cluster_simulation.histories.transactions import Anomaly
from ponor_cluster_simulation.invariants.registry import LIVENESS
from ponor_cluster_simulation.run.run_world import RunWorld
from ponor_cluster_simulation.workload.connections import Connections
from ponor_cluster_simulation.workload.share_member import fetch_lags

FINAL_S_MAX: Final = 90.0
POLL_S: Final = 0.3
INVARIANTS: Final = {
    "two holders": 62,
    "acknowledged without a lock": 62,
    "refused a holder": 62,
    "delivered after the end": 63,
    "acknowledged twice": 63,
    "delivered too often": 64,
    "delivery count": 64,
    "lost record": 65,
}
"""Kind of an anomaly to its invariant."""


class ShareJudgement:
    """The judgement of one run; without a share group it has nothing to check."""

    def __init__(self, world: RunWorld) -> None:
        self._world = world
        self._checks = world.checks
        self._members = world.clients.share_members
        self._shared = world.clients.share_group

    async def check(self, ends: Mapping[int, int]) -> None:
        """Wait until all records up to the ends of all partitions are final, and search for anomalies.

        Raises:
            InvariantBrokenError: an invariant does not hold.
        """
        if not self._members:
            return
        history = self._shared.history
        self._require(find_anomalies(history))  # before the wait: an anomaly may be why records are not final
        lags: dict[int, int] = {0: -1}

        async def watch(runtime: Runtime, connections: Connections) -> None:
            while any(lags.values()):
                lags.update(await fetch_lags(runtime, connections, self._shared))
                await runtime.clock.sleep(POLL_S)

        self._start("share-lags", watch)
        await self._world.wait(65, "every record is final", lambda: not any(lags.values()), s_max=FINAL_S_MAX)
        self._checks.counts[62] += len(history.acquisitions)
        self._checks.counts[63] += sum(each.is_confirmed for each in history.acknowledgements)
        self._checks.counts[64] += len(history.acquisitions)
        self._require(find_anomalies(history, ends))
        self._shared.is_over = True
        await self._await(
            "the share group's members have left", lambda: all(each.is_finished for each in self._members)
        )

    async def check_unchanged(self, when: str) -> None:
        """Read the lags again: no record has become available."""
        if not self._members:
            return
        found: dict[int, int] = {}

        async def check(runtime: Runtime, connections: Connections) -> None:
            found.update(await fetch_lags(runtime, connections, self._shared))

        self._start(f"share-lags-{when}", check)
        await self._await(f"the lags are known {when}", lambda: bool(found))
        self._checks.require(65, not any(found.values()), f"{when}: the lags are {found}")

    def _require(self, anomalies: Iterable[Anomaly]) -> None:
        for anomaly in anomalies:
            self._checks.require(INVARIANTS[anomaly.kind], False, str(anomaly))

    async def _await(self, what: str, condition: Callable[[], bool]) -> None:
        await self._world.wait(LIVENESS, what, condition, s_max=FINAL_S_MAX)

    def _start(self, name: str, ask: Callable[[Runtime, Connections], Awaitable[None]]) -> None:
        """Run `ask` in a new process called `name`."""

        async def run(runtime: Runtime) -> None:
            connections = Connections(name, self._shared.bootstrap)
            try:
                await ask(runtime, connections)
            finally:
                await connections.close()

        self._world.start(name, run)
