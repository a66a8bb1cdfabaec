"""Random producers, coordinators and markers: a batch enters a partition only inside its transaction."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from ponor_broker.transactions.verification import Claim, WaitingBatch
from ponor_broker.transactions.verification_errors import TransactionalWrite
from ponor_kafka.errors import ErrorCode

from services.broker.tests.transactions.verification_world import (
    WAIT_MS_MAX,
    Partition,
    Proof,
    VerificationWorld,
    Where,
)


@pytest.mark.parametrize("seed", range(30))
def test_no_batch_enters_a_partition_that_is_not_in_its_transaction(seed: int) -> None:
    swarm = _Swarm(VerificationWorld(seed))
    swarm.world.run(lambda _: swarm.run())
    swarm.check()


class _Swarm:
    """Producers write while their transactions end at any moment, and markers arrive at any moment."""

    PRODUCERS = 5
    PARTITIONS = tuple((topic, index) for topic in "ab" for index in range(2))

    def __init__(self, world: VerificationWorld) -> None:
        self.world = world
        self.chance = world.simulation.chance
        self.partitions = {where: Partition() for where in self.PARTITIONS}
        self.members: dict[int, set[Where]] = {number: set() for number in range(self.PRODUCERS)}
        """Partitions of each transaction that have no marker yet."""
        self.is_ending = dict.fromkeys(range(self.PRODUCERS), False)
        self.epochs = dict.fromkeys(range(self.PRODUCERS), 0)
        self.unlawful: list[object] = []
        self.settled: dict[tuple[int, Where], list[int]] = {}
        self.submitted = 0
        self.appended = 0

    async def run(self) -> None:
        world, chance = self.world, self.chance
        world.judge = self._judge
        world.latency_s = lambda: chance.expovariate(1 / 0.01)
        faults = asyncio.ensure_future(self._faults())
        await asyncio.gather(*(self._produce(number) for number in range(self.PRODUCERS)))
        faults.cancel()
        world.network.heal()
        await asyncio.sleep(3 * WAIT_MS_MAX / 1_000)

    def check(self) -> None:
        assert self.unlawful == []
        assert sum(map(len, self.settled.values())) == self.submitted
        assert self.appended > 10
        for numbers in self.settled.values():
            assert all(one < other for one, other in pairwise(numbers)), "in the order of the batches"

    def _write(self, number: int) -> TransactionalWrite:
        return TransactionalWrite.ADDING if number % 2 else TransactionalWrite.VERIFIED

    def _claim(self, number: int) -> Claim:
        return Claim(f"txn-{number}", number, self.epochs[number])

    def _judge(self, claim: Claim, where: Where, verify_only: bool) -> ErrorCode:
        number = claim.producer_id
        if claim.producer_epoch != self.epochs[number]:
            return ErrorCode.PRODUCER_FENCED
        if self.is_ending[number]:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if verify_only:
            return ErrorCode.NONE if where in self.members[number] else ErrorCode.INVALID_TXN_STATE
        self.members[number].add(where)
        return ErrorCode.NONE

    async def _produce(self, number: int) -> None:
        chance = self.chance
        for _ in range(15):
            if self._write(number) is TransactionalWrite.VERIFIED and not self.is_ending[number]:
                self.members[number] |= set(chance.sample(self.PARTITIONS, 2))
            for _ in range(chance.randint(1, 6)):
                self._submit(number, chance.choice(self.PARTITIONS))
                await asyncio.sleep(chance.expovariate(1 / 0.01))
            if not self.is_ending[number]:
                asyncio.ensure_future(self._end(number))  # noqa: RUF006
            await asyncio.sleep(chance.expovariate(1 / 0.05))

    def _submit(self, number: int, where: Where) -> None:
        claim, partition = self._claim(number), self.partitions[where]
        self.submitted += 1
        batch = self.submitted

        def settled(error: ErrorCode, proof: Proof | None) -> None:
            self.settled.setdefault((number, where), []).append(batch)
            if error is ErrorCode.NONE and partition.open.get(number) != claim.producer_epoch:
                if proof is None or proof.is_void or where not in self.members[number]:
                    self.unlawful.append((claim, where, proof))
                elif claim.producer_epoch != self.epochs[number]:
                    # The epoch rose at the end of the transaction, and the marker is not here yet: the
                    # batch still belongs to the transaction that ended, and the marker will end it.
                    assert self.is_ending[number]
            if error is ErrorCode.NONE:
                partition.append(claim, batch)
                self.appended += 1

        if partition.open.get(number) == claim.producer_epoch and not self.world.verifier.is_waiting(
            where, number
        ):
            settled(ErrorCode.NONE, None)
            return
        waiting = WaitingBatch(
            self._write(number), 100, lambda: partition.take_proof(claim), lambda: True, settled
        )
        self.world.verifier.submit(where, claim, waiting)

    async def _end(self, number: int) -> None:
        """Decide a transaction, then append its markers one by one."""
        self.is_ending[number] = True
        if self._write(number) is TransactionalWrite.ADDING:
            self.epochs[number] += 1
        for where in sorted(self.members[number]):
            await asyncio.sleep(self.chance.expovariate(1 / 0.02))
            self.partitions[where].mark(number)
            self.members[number].discard(where)
        self.is_ending[number] = False

    async def _faults(self) -> None:
        world, chance = self.world, self.chance
        while True:
            await asyncio.sleep(chance.expovariate(1 / 0.3))
            name = f"b{chance.choice((1, 2))}"
            match chance.randrange(3):
                case 0:
                    world.network.cut(*chance.sample(["b0", name], 2))
                case 1:
                    world.network.heal()
                    world.network.abandon_connections("b0", name)
                case 2:
                    world.leaders[chance.randrange(len(world.leaders))] = chance.randrange(3)
