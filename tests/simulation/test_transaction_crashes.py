"""Transactions on a machine that crashes and loses power: each has one outcome, and the client gets it.

The real coordinator runs on real partitions, streams and write-ahead log. The partitions with the producers'
records are a model outside the machine; markers reach them late, also after the crash of their coordinator.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
from ponor_broker.coordination.shards import BrokerPorts
from ponor_broker.serving import Serving
from ponor_broker.transactions import records, transaction, transitions
from ponor_broker.transactions.coordinator import TransactionCoordinator, TransactionFilter
from ponor_broker.transactions.events import AddRequest, EndRequest, InitRequest, ProducerClaim
from ponor_broker.transactions.instructions import Markers
from ponor_broker.transactions.marker_sender import Refusals
from ponor_broker.transactions.records import EPOCH_MAX, TopicPartition
from ponor_broker.transactions.settings import TransactionSettings
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import TRANSACTIONS_TOPIC
from ponor_runtime.identity import ProducerId
from ponor_runtime.runtime import Runtime
from ponor_runtime.turns import in_turns
from s3stream.settings import KIB

from tests.simulation.coverage_search import below, check_reached
from tests.simulation.crashing_broker import NODE_ID, TOPIC_PARTITIONS, CrashingBroker

SEEDS = int(os.environ.get("PONOR_SEEDS", "40"))
BATCH = 20
RECORDED = 4
"""The seeds below this number normally reach every state."""
FEW_EPOCHS = 7
"""So few epochs that producers get new ids."""
STATE_PARTITIONS = 3
TIMEOUT_MS = 4_000
PRODUCERS = {"a": 2, "b": 1, "c": 2, "d": 1}
"""Transactional ids with the generation of their clients; two clients use each."""
SETTINGS = TransactionSettings(
    transaction_topic_partitions=STATE_PARTITIONS,
    # So small that logs are rewritten and trimmed several times in every life.
    transaction_rewrite_log_bytes_min=4 * KIB,
    transaction_rewrite_ratio=2,
)
AGAIN = {
    None,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
"""What a client repeats its request for; None: no answer."""


@dataclass
class Row:
    """A producer in a partition."""

    epoch: int = -1
    coordinator_epoch: int = -1
    open: str | None = None


class ModelPartition:
    """The rules of docs/design/transactions.md for a partition."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.outcomes: dict[str, bool] = {}

    def append(self, claim: ProducerClaim, label: str) -> bool:
        """Append a batch of a transaction; False if the producer is fenced."""
        row = self.rows.setdefault(claim.producer_id, Row())
        if claim.epoch < row.epoch:
            return False
        assert row.open in {None, label}, f"{row.open} is still open when {label} begins"
        row.epoch, row.open = claim.epoch, label
        return True

    def mark(self, markers: Markers, coordinator_epoch: int) -> ErrorCode:
        row = self.rows.setdefault(markers.producer_id, Row())
        if coordinator_epoch < row.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if markers.producer_epoch < row.epoch + markers.is_generation_2:
            assert row.open is None, f"{row.open} would never end"
            return ErrorCode.INVALID_PRODUCER_EPOCH
        row.epoch, row.coordinator_epoch = markers.producer_epoch, coordinator_epoch
        if row.open is not None:
            assert row.open not in self.outcomes, "a transaction ended twice"
            self.outcomes[row.open] = markers.is_commit
            row.open = None
        return ErrorCode.NONE


class TransactionWorld(CrashingBroker[TransactionCoordinator]):
    """Clients, the partitions that they write to, and their history."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, TRANSACTIONS_TOPIC, STATE_PARTITIONS)
        self.data = {("t", index): ModelPartition() for index in range(TOPIC_PARTITIONS)}
        self.told: dict[str, bool] = {}
        self.rotations = 0
        self._next_producer_id = 1_000
        self._deliveries: set[asyncio.Task[None]] = set()

    def begin(self, runtime: Runtime, broker: Any, serving: Serving) -> TransactionCoordinator:
        coordinator = TransactionCoordinator(
            BrokerPorts(broker, broker, broker, serving, NODE_ID, runtime),
            settings=SETTINGS,
            markers=Sender(self, self.lives),
            take_producer_id=self._take_producer_id,
            offsets_partition_of=lambda _: 0,
        )
        coordinator.start()
        return coordinator

    async def _take_producer_id(self) -> ProducerId | None:
        await asyncio.sleep(self.chance.uniform(0, 0.05))
        self._next_producer_id += 1
        return ProducerId(self._next_producer_id) if self.chance.random() < 0.9 else None

    def deliver(self, delivery: Any) -> None:
        """Run a delivery of markers outside the machine."""
        task = asyncio.ensure_future(delivery)
        self._deliveries.add(task)
        task.add_done_callback(self._delivered)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._deliveries.discard(task)
        task.result()

    # --- the clients

    async def producer(self, name: str, client: int) -> None:
        """A client that runs transactions; another one with the same id takes over now and then."""
        claim: ProducerClaim | None = None
        number = 0
        while not self.quiet:
            if claim is None:
                await asyncio.sleep(self.chance.uniform(0, 5))
                claim = await self._init(name)
                continue
            number += 1
            claim = await self._transact(name, f"{name}{client}-{number}", claim)

    async def _init(self, name: str) -> ProducerClaim | None:
        answer = await self._until_decided(lambda c: c.init_producer_id(name, InitRequest(TIMEOUT_MS)))
        if answer is None or answer.error is not ErrorCode.NONE:
            return None
        return ProducerClaim(answer.producer_id, answer.producer_epoch)

    async def _transact(self, name: str, label: str, claim: ProducerClaim) -> ProducerClaim | None:
        """Run one transaction; return the producer's next claim, None if it is fenced."""
        is_2 = PRODUCERS[name] == 2
        chosen = self.chance.sample(sorted(self.data), self.chance.randint(1, 3))
        # The leaders of the partitions send their requests at the same time (generation 2).
        for together in [chosen] if is_2 else [[where] for where in chosen]:
            written = await asyncio.gather(*(self._write(name, label, claim, where) for where in together))
            if not all(written):
                return None
        if self.chance.random() < 0.03:
            await asyncio.sleep(1.5 * TIMEOUT_MS / 1000)
        is_commit = self.chance.random() < 0.6
        answer = await self._until_decided(lambda c: c.end(name, EndRequest(claim, is_commit, is_2)))
        if answer is None or answer.error is not ErrorCode.NONE:
            return None
        self.told[label] = is_commit
        if not is_2:
            return claim
        self.rotations += answer.producer_id != claim.producer_id
        return ProducerClaim(answer.producer_id, answer.producer_epoch)

    async def _write(self, name: str, label: str, claim: ProducerClaim, where: TopicPartition) -> bool:
        """Add a partition and write a batch to it; False if the producer is fenced."""
        await asyncio.sleep(self.chance.uniform(0, 0.2))
        request = AddRequest(claim, {where}, PRODUCERS[name] == 2)
        error = await self._until_decided(partial(_add, name, request))
        return error is ErrorCode.NONE and self.data[where].append(claim, label)

    async def _until_decided(self, method: Callable[[TransactionCoordinator], Any]) -> Any:
        """Repeat a request until its answer is final; None if the run ends first."""
        while not self.quiet:
            answer = await self.ask(method, 6.0)
            error = answer if answer is None or isinstance(answer, ErrorCode) else answer.error
            if error not in AGAIN:
                return answer
            await asyncio.sleep(self.chance.uniform(0.01, 0.1))
        return None

    # --- the run

    async def scenario(self) -> None:
        """Run lives that crash, then a quiet one in which every transaction ends."""
        producers = [
            asyncio.ensure_future(self.producer(name, client)) for name in PRODUCERS for client in range(2)
        ]
        for _ in range(self.chance.randint(2, 4)):
            await self.start()
            await asyncio.sleep(self.chance.choice((1.0, 5.0, 20.0)) * self.chance.random())
            self.crash()
        await self.start()
        await asyncio.sleep(20.0)
        self.quiet = True
        await asyncio.sleep(TIMEOUT_MS / 1000 + 20)
        for producer in producers:
            assert producer.done(), "a client waits without limit"
            producer.result()
        listed = await self.ask(lambda c: in_turns(c.list_transactions(TransactionFilter())), 5.0)
        assert {record.state.is_complete or record.state.name == "EMPTY" for _, record in listed} == {True}
        self._check()

    def _check(self) -> None:
        outcomes: dict[str, bool] = {}
        for partition in self.data.values():
            assert not any(row.open for row in partition.rows.values()), "a transaction never ended"
            for label, is_commit in partition.outcomes.items():
                assert outcomes.setdefault(label, is_commit) == is_commit, f"{label} has two outcomes"
        for label, is_commit in self.told.items():
            assert outcomes[label] == is_commit, f"{label} ended other than the client's answer says"


async def _add(name: str, request: AddRequest, coordinator: TransactionCoordinator) -> ErrorCode:
    return await coordinator.add_partitions(name, request)


class Sender:
    """The markers of one life of the coordinator."""

    def __init__(self, world: TransactionWorld, life: int) -> None:
        self._world = world
        self._life = life

    def send(
        self, shard: int, coordinator_epoch: int, markers: Markers, done: Callable[[Refusals], None]
    ) -> None:
        del shard
        self._world.deliver(self._deliver(coordinator_epoch, markers, done))

    def cancel(self, shard: int) -> None:
        raise AssertionError(f"shard {shard} was closed")

    async def _deliver(
        self, coordinator_epoch: int, markers: Markers, done: Callable[[Refusals], None]
    ) -> None:
        world = self._world
        refusals: dict[TopicPartition, ErrorCode] = {}
        for where in sorted(markers.partitions):
            await asyncio.sleep(world.chance.choice((0.001, 0.1, 0.1, 3.0)) * world.chance.random())
            error = world.data[where].mark(markers, coordinator_epoch)
            if error is not ErrorCode.NONE:
                refusals[where] = error
            if world.chance.random() < 0.1:  # its answer is lost: it is sent again
                world.data[where].mark(markers, coordinator_epoch)
        if self._life == world.lives and world.requests is not None:
            done(refusals)


@cache
def run_transactions(seed: int, epoch_max: int) -> TransactionWorld:
    """Run one seed, once."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (records, transaction, transitions):
            patch.setattr(module, "EPOCH_MAX", epoch_max)
        world = TransactionWorld(seed)
        world.simulation.run(world.scenario())
    return world


both_epochs = pytest.mark.parametrize("epoch_max", [EPOCH_MAX, FEW_EPOCHS])


@both_epochs
@pytest.mark.parametrize("first", range(0, SEEDS // 10, BATCH))
def test_a_transaction_has_the_outcome_of_its_answer(first: int, epoch_max: int) -> None:
    for seed in range(first, min(first + BATCH, SEEDS // 10)):
        world = run_transactions(seed, epoch_max)
        assert epoch_max == FEW_EPOCHS or not world.rotations


@both_epochs
def test_the_workload_reaches_the_intended_states(epoch_max: int) -> None:
    def missing(worlds: Sequence[TransactionWorld]) -> list[str]:
        trimmed = [partition.log_start_offset > 0 for world in worlds for partition in world.partitions]
        counts = {
            "outcomes": sum(len(world.told) for world in worlds),
            "changes of the producer id": sum(world.rotations for world in worlds),
            "logs that were rewritten": sum(trimmed),
        }
        rotations = 1 if epoch_max == FEW_EPOCHS else 0
        wanted = {
            "outcomes": 30 * len(worlds) + 1,
            "changes of the producer id": rotations,
            "logs that were rewritten": 1,
        }
        return below(wanted, counts)

    check_reached(
        missing,
        (run_transactions(seed, epoch_max) for seed in range(RECORDED)),
        (run_transactions(seed, epoch_max) for seed in range(RECORDED, 3 * RECORDED)),
    )
