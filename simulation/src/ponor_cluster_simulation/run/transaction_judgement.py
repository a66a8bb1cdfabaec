"""Judges the transactions of a run: reads everything when no transaction is open, and searches anomalies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final

from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.transactions import Entry, find_anomalies
from ponor_cluster_simulation.invariants.registry import LIVENESS
from ponor_cluster_simulation.run.run_world import RunWorld
from ponor_cluster_simulation.workload.committed_reader import CommittedReader
from ponor_cluster_simulation.workload.connections import Connections
from ponor_cluster_simulation.workload.transformer import fetch_offsets

QUIESCENT_S_MAX: Final = 120.0
INVARIANTS: Final = {
    "offset without its transaction": 51,
    "lost offset": 51,
    "aborted read": 49,
    "unstable read": 49,
}
"""Kind of an anomaly to its invariant; 48 for all others."""


class TransactionJudgement:
    """The judgement of one run; without transactions it has nothing to check."""

    def __init__(self, world: RunWorld) -> None:
        self._world = world
        self._checks = world.checks
        self._clients = world.clients.transactions
        self._shared = self._clients.shared
        self._log: dict[int, list[tuple[int, Entry]]] = {}

    async def check(self) -> None:
        """Wait until everything is transformed, read all, and compare it with the history.

        Raises:
            InvariantBrokenError: an invariant does not hold.
        """
        if not self._clients.producers:
            return
        world, clients = self._world, self._clients
        self._shared.healed_s = world.simulation.loop.time()
        await self._await(
            "the transformers are at the end", lambda: all(each.is_at_end for each in clients.transformers)
        )
        self._shared.is_over = True
        for client in clients.producers:
            await self._await(f"{client.name} is finished", partial(attrgetter("is_finished"), client))
        for reader in clients.readers:
            reader.stop = True
            await self._await(f"{reader.name} is finished", partial(attrgetter("is_finished"), reader))
        self._log = await self._read("committed-reader-last")
        await self._fetch_offsets()
        self._search()

    async def check_unchanged(self, when: str) -> None:
        """Read everything again: the same records are visible."""
        if not self._clients.producers:
            return
        log = await self._read(f"committed-reader-{when}")
        self._checks.require(49, log == self._log, f"committed records changed: {when}")

    async def _await(self, what: str, condition: Callable[[], bool]) -> None:
        await self._world.wait(LIVENESS, what, condition, s_max=QUIESCENT_S_MAX)

    async def _read(self, name: str) -> dict[int, list[tuple[int, Entry]]]:
        reader = CommittedReader(name, self._shared, once=True)
        self._world.start(name, reader.run)
        await self._await(f"{name} has read all", lambda: reader.is_finished)
        return reader.log

    async def _fetch_offsets(self) -> None:
        name, shared = "committed-offsets", self._shared
        is_finished = False

        async def run(runtime: Runtime) -> None:
            nonlocal is_finished
            connections = Connections(name, shared.bootstrap)
            try:
                for each in self._clients.transformers:
                    shared.history.final_offsets[each.group] = await fetch_offsets(
                        runtime, connections, each.group, each.partitions
                    )
            finally:
                await connections.close()
            is_finished = True

        self._world.start(name, run)
        await self._await("the groups' offsets are stable", lambda: is_finished)

    def _search(self) -> None:
        history = self._shared.history
        for number in {48, *INVARIANTS.values()}:
            self._checks.counts[number] += len(history.transactions)
        for anomaly in find_anomalies(history, self._log):
            self._checks.require(INVARIANTS.get(anomaly.kind, 48), False, str(anomaly))
