"""A consumer of committed records: it repeatedly reads all partitions, from the beginning or from a random
offset.
"""

from __future__ import annotations

import asyncio

from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.transactions import Entry
from ponor_cluster_simulation.workload.committed_log import CommittedLog
from ponor_cluster_simulation.workload.connections import Connections
from ponor_cluster_simulation.workload.leaders import Leaders
from ponor_cluster_simulation.workload.shared_transactions import TOPIC, SharedTransactions


class CommittedReader:
    """One consumer. Its process never crashes.

    Attributes:
        log: the records of each partition from offset 0 on; filled only with `once`.
    """

    def __init__(self, name: str, shared: SharedTransactions, *, once: bool = False) -> None:
        """With `once`, read each partition once, until its end is reached and it has no open transaction."""
        self.name = name
        self._shared = shared
        self._once = once
        self._connections = Connections(name, shared.bootstrap)
        self._leaders = Leaders(name, TOPIC, shared.bootstrap)
        self._log = CommittedLog(name, self._connections, self._leaders, shared)
        self.log: dict[int, list[tuple[int, Entry]]] = {index: [] for index in range(shared.partitions)}
        self.stop = False
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Read until stopped."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leaders.renew(runtime, lambda: self.is_finished))
            try:
                await (self._read_once(runtime) if self._once else self._read_on(runtime))
            finally:
                self.is_finished = True
                self._shared.states["committed records read"] += self._log.reads
                await self._connections.close()

    async def _read_once(self, runtime: Runtime) -> None:
        for partition in self.log:
            position, is_at_end = 0, False
            while not is_at_end:
                found = await self._log.read(runtime, partition, position, wait_ms=100)
                if found is None:
                    await runtime.clock.sleep(runtime.randomness.uniform(0.02, 0.1))
                    continue
                self.log[partition] += found.records
                position, is_at_end = found.end, found.is_at_end

    async def _read_on(self, runtime: Runtime) -> None:
        positions = dict.fromkeys(self.log, 0)
        while not self.stop:
            partition = runtime.randomness.below(len(positions))
            if runtime.randomness.below(20) == 0:
                positions[partition] = runtime.randomness.below(positions[partition] + 1)
            wait_ms = (0, 30, 200)[runtime.randomness.below(3)]
            found = await self._log.read(runtime, partition, positions[partition], wait_ms=wait_ms)
            if found is not None:
                positions[partition] = found.end
            await runtime.clock.sleep(runtime.randomness.uniform(0.0, 2 * self._shared.pause_s_max))
