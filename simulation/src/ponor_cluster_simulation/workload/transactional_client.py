"""Clients that use transactions: what they have in common, and one that only writes.

A client calls InitProducerId, runs transactions, and sometimes disappears in the middle of one; then it
starts again with the same transactional id. Several clients may share an id: each InitProducerId fences the
other clients.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.transactions import Entry, Outcome, Transaction
from ponor_cluster_simulation.workload.connections import Connections, NotSentError
from ponor_cluster_simulation.workload.leaders import Leaders
from ponor_cluster_simulation.workload.producer_session import (
    FOREVER,
    EndedError,
    IdUse,
    ProducerSession,
    VanishedError,
)
from ponor_cluster_simulation.workload.shared_transactions import TOPIC, SharedTransactions

CREATED: Final = frozenset({ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS})
ABORTED_ONE_IN: Final = 4
VANISHING_ONE_IN: Final = 12
LATE_ONE_IN: Final = 25
"""One transaction in this many exceeds its timeout."""
SLOW_ONE_IN: Final = 4
"""A client pauses after one batch in this many, so that moves and failovers find open transactions."""
BATCH_BYTES_MAX: Final = 3_600
"""Maximum bytes of the values of one batch; the smallest segments have 5,000 bytes."""
SIZES_BYTES: Final = (60, 60, 400, 1_500)


class TransactionalClient:
    """A client that writes to several partitions in each transaction. Its process never crashes."""

    def __init__(self, name: str, transactional_id: str, generation: int, shared: SharedTransactions) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.shared = shared
        self.connections = Connections(name, shared.bootstrap)
        self.leaders = Leaders(name, TOPIC, shared.bootstrap)
        self._generation = generation
        self._begun = 0
        self._numbers: Counter[int] = Counter()
        self.stop = False
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Run transactions until stopped."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.leaders.renew(runtime, lambda: self.is_finished))
            try:
                while not await self._made(runtime):
                    await runtime.clock.sleep(runtime.randomness.uniform(0.02, 0.1))
                while not self.is_done:
                    await self._live(runtime)
                    await runtime.clock.sleep(runtime.randomness.uniform(0.0, 10 * self.shared.pause_s_max))
            finally:
                self.is_finished = True
                await self.connections.close()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.stop

    async def _made(self, runtime: Runtime) -> bool:
        configs = [CreatableTopicConfig(*row) for row in self.shared.topic_configs.items()]
        topic = CreatableTopic(TOPIC, self.shared.partitions, 1, configs=configs)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=3_000)
        try:
            answer = await self.connections.ask_any(runtime, request, 5, CreateTopicsResponse)
        except (ConnectionClosedError, NotSentError):
            return False
        return answer.topics[0].error_code in CREATED

    async def _live(self, runtime: Runtime) -> None:
        """Call InitProducerId and run transactions, until the client disappears or is stopped."""
        shared = self.shared
        session = ProducerSession(
            runtime,
            self.connections,
            self.leaders,
            shared.checks,
            shared.uses.setdefault(self.transactional_id, IdUse()),
            transactional_id=self.transactional_id,
            topic=TOPIC,
            generation=self._generation,
            timeout_s=shared.timeout_s,
        )
        try:
            await session.init()
            await self.started(runtime)
            while not self.is_done:
                if session.needs_init:
                    shared.states["producers fenced or continued with a new epoch"] += 1
                    await runtime.clock.sleep(runtime.randomness.uniform(0.0, 10 * shared.pause_s_max))
                    await session.init()
                    await self.started(runtime)
                may_vanish = not self.stop and runtime.randomness.below(VANISHING_ONE_IN) == 0
                session.requests_left = 1 + runtime.randomness.below(8) if may_vanish else FOREVER
                await self.work(runtime, session)
                await runtime.clock.sleep(runtime.randomness.uniform(0.001, shared.pause_s_max))
        except VanishedError:
            shared.states["producers that disappeared"] += 1
            await self.connections.close()
        finally:
            shared.states["requests of producers sent again"] += session.repeats

    async def started(self, runtime: Runtime) -> None:
        """Called after each InitProducerId."""

    async def work(self, runtime: Runtime, session: ProducerSession) -> None:
        """Run one transaction."""
        chosen = self._choose(runtime)
        transaction = self.begin()
        batches = {
            partition: [
                [self.entry(transaction, partition) for _ in range(1 + runtime.randomness.below(2))]
                for _ in range(1 + runtime.randomness.below(2))
            ]
            for partition in chosen
        }
        await self.execute(runtime, session, transaction, batches)

    def _choose(self, runtime: Runtime) -> list[int]:
        count = self.shared.partitions
        first, number = runtime.randomness.below(count), 1 + runtime.randomness.below(count)
        return [(first + index) % count for index in range(number)]

    def begin(self, group: str = "") -> Transaction:
        """Begin a transaction in the history."""
        self._begun += 1
        return self.shared.history.begin(f"{self.name}.{self._begun}", self.name, group)

    def entry(
        self,
        transaction: Transaction,
        partition: int,
        source: Entry | None = None,
        at: tuple[int, int] | tuple[()] = (),
    ) -> Entry:
        """Return the next record for a partition, and note it as written."""
        self._numbers[partition] += 1
        hop = 0 if source is None else source.hop + 1
        entry = Entry(transaction.name, self.name, partition, self._numbers[partition], hop, at)
        transaction.written.append(entry)
        return entry

    async def execute(
        self,
        runtime: Runtime,
        session: ProducerSession,
        transaction: Transaction,
        batches: Mapping[int, Sequence[Sequence[Entry]]],
    ) -> bool:
        """Write and end a transaction. Return whether it was committed."""
        session.begin()
        try:
            await self._write(runtime, session, transaction, batches)
        except* EndedError:
            transaction.outcome = Outcome.ABORTED
        except* VanishedError:
            transaction.outcome = Outcome.ABORTED
            raise VanishedError from None
        is_commit = self.stop or runtime.randomness.below(ABORTED_ONE_IN) > 0
        if transaction.outcome is Outcome.ABORTED or not is_commit:
            transaction.outcome = Outcome.ABORTED
            if not session.needs_init:
                await session.end(is_commit=False)
        else:
            if not self.stop and runtime.randomness.below(LATE_ONE_IN) == 0:
                await runtime.clock.sleep(1.3 * self.shared.timeout_s)
            transaction.outcome = await session.end(is_commit=True)
        self.shared.ended += 1
        return transaction.outcome is Outcome.COMMITTED

    async def _write(
        self,
        runtime: Runtime,
        session: ProducerSession,
        transaction: Transaction,
        batches: Mapping[int, Sequence[Sequence[Entry]]],
    ) -> None:
        if session.generation == 1 and batches:
            await session.add_partitions(batches)
        async with asyncio.TaskGroup() as tasks:
            for partition, of_partition in batches.items():
                size_bytes = SIZES_BYTES[runtime.randomness.below(len(SIZES_BYTES))]
                tasks.create_task(self._write_all(runtime, session, partition, of_partition, size_bytes))
            if transaction.offsets:
                tasks.create_task(session.commit_offsets(transaction.group, transaction.offsets))

    async def _write_all(
        self,
        runtime: Runtime,
        session: ProducerSession,
        partition: int,
        batches: Sequence[Sequence[Entry]],
        size_bytes: int,
    ) -> None:
        for batch in batches:
            await session.write(partition, batch, min(size_bytes, BATCH_BYTES_MAX // len(batch)))
            if not self.stop and runtime.randomness.below(SLOW_ONE_IN) == 0:
                await runtime.clock.sleep(runtime.randomness.uniform(0.0, 0.4 * self.shared.timeout_s))
