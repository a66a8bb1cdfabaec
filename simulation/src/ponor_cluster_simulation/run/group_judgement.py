"""Judges the consumer group of a run: waits until its members share all partitions and have read everything,
and searches their history and the coordinator's log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.group_logs import GroupLog
from ponor_cluster_simulation.histories.groups import find_anomalies
from ponor_cluster_simulation.histories.transactions import Anomaly
from ponor_cluster_simulation.invariants.registry import LIVENESS
from ponor_cluster_simulation.run.plan import COORDINATOR_PARTITIONS
from ponor_cluster_simulation.run.run_world import RunWorld
from ponor_cluster_simulation.workload.connections import Connections
from ponor_cluster_simulation.workload.group_member import fetch_committed
from ponor_cluster_simulation.workload.raw_log import RawLogs, group_rows
from ponor_cluster_simulation.workload.shared_group import SESSION_TIMEOUT_MS

CONVERGED_S_MAX: Final = 60.0
CALM_S: Final = 1.5 * SESSION_TIMEOUT_MS / 1000
"""How long an assignment must stay: members that disappeared are removed within a session timeout."""
INVARIANTS: Final = {
    "two owners": 56,
    "commit without right": 57,
    "invented offset": 57,
    "lost offset": 57,
    "skipped records": 58,
    "fenced without a reason": 61,
}
"""Kind of an anomaly to its invariant; 60 for those of the log."""


class GroupJudgement:
    """The judgement of one run; without a group it has nothing to check."""

    def __init__(self, world: RunWorld) -> None:
        self._world = world
        self._checks = world.checks
        self._members = world.clients.members
        self._shared = world.clients.group
        self._calm_since_s = 0.0
        self._seen: object = None
        self._ends: Mapping[int, int] = {}

    async def check(self, ends: Mapping[int, int]) -> None:
        """Wait until the members have read up to the ends of all partitions, and search for anomalies.

        Raises:
            InvariantBrokenError: an invariant does not hold.
        """
        if not self._members:
            return
        history = self._shared.history
        self._require(find_anomalies(history))  # before the wait: an anomaly may be why the members wait
        self._ends = ends
        await self._world.wait(
            59, "the members share all partitions", self._has_converged, s_max=CONVERGED_S_MAX
        )
        self._checks.counts[56] += len(history.uses)
        self._checks.counts[57] += len(history.seen_offsets) + history.count_acknowledged()
        self._checks.counts[58] += len(history.deliveries)
        self._checks.counts[61] += self._shared.states["heartbeats answered"]
        self._require(find_anomalies(history, ends))
        await self._as_client("group-log-reader", self._check_log)
        self._shared.is_over = True
        await self._await("the members have left", lambda: all(each.is_finished for each in self._members))

    async def check_unchanged(self, when: str) -> None:
        """Read the committed offsets again: they are the ends of the partitions."""
        if not self._members:
            return

        async def check(name: str, runtime: Runtime) -> None:
            connections = Connections(name, self._shared.bootstrap)
            try:
                found = await fetch_committed(runtime, connections, self._shared)
            finally:
                await connections.close()
            for partition, end in self._ends.items():
                offset = max(found[partition], 0)
                what = f"{when}: partition {partition} has the offset {offset} instead of {end}"
                self._checks.require(57, offset == end, what)

        await self._as_client(f"committed-{when}", check)

    def _has_converged(self) -> bool:
        """Whether nothing has changed for longer than a session timeout, and nothing is missing."""
        now_s = self._world.simulation.loop.time()
        seen = [(each.membership, each.used, each.is_settled) for each in self._members]
        if seen != self._seen:
            self._seen, self._calm_since_s = seen, now_s
        used = sorted(partition for each in self._members for partition in each.used)
        return (
            used == list(range(self._shared.partitions))
            and all(each.is_settled for each in self._members)
            and all(
                max(self._shared.history.acknowledged(each), 0) == end for each, end in self._ends.items()
            )
            and now_s - self._calm_since_s >= CALM_S
        )

    async def _check_log(self, name: str, runtime: Runtime) -> None:
        reader = RawLogs(runtime, name, OFFSETS_TOPIC, self._shared.bootstrap)
        log = GroupLog()
        try:
            for partition in range(COORDINATOR_PARTITIONS):
                _, batches = await reader.read(partition)
                found = [rows for rows in group_rows(batches, self._shared.group) if rows]
                self._checks.counts[60] += len(found)
                self._require(log.replay(found))
        finally:
            await reader.close()
        used = {each.membership.member_id: each.used for each in self._members if each.membership is not None}
        self._require(log.at_rest(used))

    def _require(self, anomalies: Iterable[Anomaly]) -> None:
        for anomaly in anomalies:
            self._checks.require(INVARIANTS.get(anomaly.kind, 60), False, str(anomaly))

    async def _await(self, what: str, condition: Callable[[], bool]) -> None:
        await self._world.wait(LIVENESS, what, condition, s_max=CONVERGED_S_MAX)

    async def _as_client(self, name: str, ask: Callable[[str, Runtime], Awaitable[None]]) -> None:
        """Run `ask` in a new process called `name`."""
        is_finished = False

        async def run(runtime: Runtime) -> None:
            nonlocal is_finished
            await ask(name, runtime)
            is_finished = True

        self._world.start(name, run)
        await self._await(f"{name} is answered", lambda: is_finished)
