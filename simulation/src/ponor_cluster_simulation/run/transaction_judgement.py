"""Judges the transactions of a run: reads everything when no transaction is open, and finds anomalies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Final

from ponor_kafka.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ponor_kafka.record_batch import BatchView
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.transaction_logs import find_faults
from ponor_cluster_simulation.histories.transactions import Entry, find_anomalies
from ponor_cluster_simulation.invariants.registry import LIVENESS
from ponor_cluster_simulation.run.plan import COORDINATOR_PARTITIONS
from ponor_cluster_simulation.run.run_world import RunWorld
from ponor_cluster_simulation.run.transaction_plan import STATE_PARTITIONS
from ponor_cluster_simulation.workload.committed_reader import CommittedReader
from ponor_cluster_simulation.workload.connections import Connections
from ponor_cluster_simulation.workload.raw_log import RawLogs, states, transactional
from ponor_cluster_simulation.workload.shared_transactions import TOPIC
from ponor_cluster_simulation.workload.transactional_client import TransactionalClient
from ponor_cluster_simulation.workload.transformer import fetch_offsets

QUIESCENT_S_MAX: Final = 120.0
INVARIANTS: Final = {
    "offset without its transaction": 51,
    "lost offset": 51,
    "aborted read": 49,
    "unstable read": 49,
}
"""Kind of an anomaly to its invariant; 48 for all others."""


LOG_INVARIANTS: Final = {"open transaction": 55, "unknown transaction": 55}
"""Kind of an anomaly of the logs to its invariant; 54 for all others."""


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
        # A writer's transaction may begin to append after the transformers were at the end of the log.
        await self._finished(clients.writers)
        await self._await(
            "the transformers have read all", lambda: all(each.is_at_end for each in clients.transformers)
        )
        self._shared.is_over = True
        await self._finished(clients.transformers)
        for reader in clients.readers:
            reader.stop = True
        await self._finished(clients.readers)
        self._log = await self._read("committed-reader-last")
        await self._as_client("committed-offsets", self._fetch_offsets)
        self._search()
        await self._as_client("log-reader", self._check_logs)

    async def check_unchanged(self, when: str) -> None:
        """Read everything again: the same records are visible."""
        if not self._clients.producers:
            return
        log = await self._read(f"committed-reader-{when}")
        self._checks.require(49, log == self._log, f"committed records changed: {when}")

    async def _finished(self, clients: Iterable[TransactionalClient | CommittedReader]) -> None:
        for client in clients:
            await self._await(f"{client.name} is finished", partial(attrgetter("is_finished"), client))

    async def _await(self, what: str, condition: Callable[[], bool]) -> None:
        await self._world.wait(LIVENESS, what, condition, s_max=QUIESCENT_S_MAX)

    async def _read(self, name: str) -> dict[int, list[tuple[int, Entry]]]:
        reader = CommittedReader(name, self._shared, once=True)
        self._world.start(name, reader.run)
        await self._await(f"{name} has read all", lambda: reader.is_finished)
        return reader.log

    async def _as_client(self, name: str, ask: Callable[[str, Runtime], Awaitable[None]]) -> None:
        """Run `ask` in a new process called `name`."""
        is_finished = False

        async def run(runtime: Runtime) -> None:
            nonlocal is_finished
            await ask(name, runtime)
            is_finished = True

        self._world.start(name, run)
        await self._await(f"{name} is answered", lambda: is_finished)

    async def _fetch_offsets(self, name: str, runtime: Runtime) -> None:
        connections = Connections(name, self._shared.bootstrap)
        try:
            for each in self._clients.transformers:
                self._shared.history.final_offsets[each.group] = await fetch_offsets(
                    runtime, connections, each.group, each.partitions
                )
        finally:
            await connections.close()

    async def _check_logs(self, name: str, runtime: Runtime) -> None:
        """Compare the coordinators' log with the batches and markers of the partitions."""
        coordinators = await self._raw(name, runtime, TRANSACTIONS_TOPIC, STATE_PARTITIONS)
        topics = {TOPIC: self._shared.partitions}
        if self._shared.topic_configs:
            topics = {}  # the cleaner removes markers
        if self._clients.transformers:
            topics[OFFSETS_TOPIC] = COORDINATOR_PARTITIONS
        logs = {
            (topic, partition): transactional(batches)
            for topic, count in topics.items()
            for partition, (_, batches) in enumerate(await self._raw(name, runtime, topic, count))
        }
        is_whole = not any(start for start, _ in coordinators)
        found = [state for _, batches in coordinators for state in states(batches)]
        self._checks.counts[54] += len(found)
        self._checks.counts[55] += sum(map(len, logs.values()))
        for fault in find_faults(found, logs, is_whole=is_whole):
            self._checks.require(LOG_INVARIANTS.get(fault.kind, 54), False, str(fault))

    async def _raw(
        self, name: str, runtime: Runtime, topic: str, count: int
    ) -> list[tuple[int, list[BatchView]]]:
        reader = RawLogs(runtime, name, topic, self._shared.bootstrap)
        try:
            return [await reader.read(partition) for partition in range(count)]
        finally:
            await reader.close()

    def _search(self) -> None:
        history = self._shared.history
        for number in {48, *INVARIANTS.values()}:
            self._checks.counts[number] += len(history.transactions)
        for anomaly in find_anomalies(history, self._log):
            self._checks.require(INVARIANTS.get(anomaly.kind, 48), False, str(anomaly))
