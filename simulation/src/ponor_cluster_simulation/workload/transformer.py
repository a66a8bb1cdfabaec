"""A client that reads committed records, writes records made from them, and commits its offsets, all in
one transaction.

It writes to the topic that it reads, so that transactions read from each other in many ways. Each record is
transformed a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.transactions import NO_OFFSET, Entry, SeenOffset, Transaction
from ponor_cluster_simulation.workload.committed_log import CommittedLog
from ponor_cluster_simulation.workload.connections import GROUP, Connections, NotSentError
from ponor_cluster_simulation.workload.producer_session import RETRIABLE, ProducerSession
from ponor_cluster_simulation.workload.shared_transactions import TOPIC, SharedTransactions
from ponor_cluster_simulation.workload.transactional_client import TransactionalClient

STABLE_VERSION: Final = 7
TAKEN_MAX: Final = 6
"""Records that one transaction reads."""


class Transformer(TransactionalClient):
    """One client of a group. Several clients with one transactional id read the same partitions.

    Attributes:
        group: the group of its offsets.
        partitions: those that it reads.
    """

    def __init__(
        self,
        name: str,
        transactional_id: str,
        generation: int,
        shared: SharedTransactions,
        partitions: Sequence[int],
    ) -> None:
        super().__init__(name, transactional_id, generation, shared)
        self.group = f"group-of-{transactional_id}"
        self.partitions = tuple(partitions)
        self._log = CommittedLog(name, self.connections, self.leaders, shared)
        self._positions: dict[int, int] = {}
        self._at_end: dict[int, int] = {}
        """How many transactions had ended when a partition was found to be at its end."""
        self.is_standby = False
        """Whether another client of the id continues after the stop."""

    @property
    def is_at_end(self) -> bool:
        """Whether all its partitions are read and no transaction is open in them, or it is a standby."""
        return self.is_standby or all(
            self._at_end.get(partition) == self.shared.ended for partition in self.partitions
        )

    @property
    def is_done(self) -> bool:
        return (self.stop and self.is_standby) or self.shared.is_over

    async def started(self, runtime: Runtime) -> None:
        """Continue at the group's offsets."""
        known = {partition: self._acknowledged(partition) for partition in self.partitions}
        found = await fetch_offsets(runtime, self.connections, self.group, self.partitions)
        for partition, offset in found.items():
            self.shared.history.seen_offsets.append(
                SeenOffset(self.group, partition, offset, known[partition])
            )
        self._positions = {partition: max(offset, 0) for partition, offset in found.items()}

    def _acknowledged(self, partition: int) -> int:
        return self.shared.acknowledged_offsets.get((self.group, partition), NO_OFFSET)

    async def work(self, runtime: Runtime, session: ProducerSession) -> None:
        """Transform some records of one partition."""
        partition = self.partitions[runtime.randomness.below(len(self.partitions))]
        ended = self.shared.ended
        found = await self._log.read(runtime, partition, self._positions[partition], wait_ms=50)
        if found is None:
            return
        self._at_end[partition] = ended if found.is_at_end and not found.records else -1
        if not found.records:
            self._positions[partition] = found.end
            return
        taken = found.records[:TAKEN_MAX]
        transaction = self.begin(self.group)
        transaction.offsets[partition] = taken[-1][0] + 1
        batches = self._transformed(runtime, transaction, partition, taken)
        if await self.execute(runtime, session, transaction, batches):
            self._committed(transaction, partition)
        elif not session.needs_init:
            await self.started(runtime)

    def _transformed(
        self, runtime: Runtime, transaction: Transaction, partition: int, taken: Sequence[tuple[int, Entry]]
    ) -> dict[int, list[list[Entry]]]:
        batches: dict[int, list[list[Entry]]] = {}
        for offset, source in taken:
            transaction.read.append(source)
            if source.hop < self.shared.history.transformed:
                target = runtime.randomness.below(self.shared.partitions)
                entry = self.entry(transaction, target, source, (partition, offset))
                batches.setdefault(target, [[]])[0].append(entry)
        return batches

    def _committed(self, transaction: Transaction, partition: int) -> None:
        offset = self._positions[partition] = transaction.offsets[partition]
        key = (self.group, partition)
        self.shared.acknowledged_offsets[key] = max(offset, self._acknowledged(partition))


async def fetch_offsets(
    runtime: Runtime, connections: Connections, group: str, partitions: Sequence[int]
) -> dict[int, int]:
    """Return the stable offsets of a group."""
    topic = OffsetFetchRequestTopic(TOPIC, list(partitions))
    request = OffsetFetchRequest(group_id=group, topics=[topic], require_stable=True)
    while True:
        try:
            answer = await connections.ask_coordinator(
                runtime, GROUP, group, request, STABLE_VERSION, OffsetFetchResponse
            )
        except (ConnectionClosedError, NotSentError):
            connections.forget_coordinators()
        else:
            rows = [row for topic in answer.topics for row in topic.partitions]
            codes = {answer.error_code, *(row.error_code for row in rows)}
            if codes == {ErrorCode.NONE}:
                return {row.partition_index: row.committed_offset for row in rows}
            assert codes <= RETRIABLE | {ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT}, codes
            if codes & RETRIABLE:
                connections.forget_coordinators()
        await runtime.clock.sleep(runtime.randomness.uniform(0.02, 0.1))
