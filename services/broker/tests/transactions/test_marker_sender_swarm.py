"""Random faults: leaders receive every marker, in order, until its shard is cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from ponor_broker.peers import request_port
from ponor_kafka.errors import ErrorCode
from ponor_simulation.links import Links

from services.broker.tests.transactions.marker_world import (
    Ended,
    MarkerWorld,
    Sent,
    Where,
    all_of,
)


@pytest.mark.parametrize("is_generation_2", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_under_faults_every_marker_is_delivered_in_order_until_its_shard_is_cancelled(
    seed: int, is_generation_2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_port, "REQUEST_S_MAX", 1.0)
    world = MarkerWorld(seed)
    swarm = _Swarm(world, is_generation_2=is_generation_2)
    world.run(lambda _: swarm.run())
    swarm.check()


class _Swarm:
    """Producers that end one transaction after the other while leaders move, links fail, brokers crash,
    topics are deleted and one shard is cancelled.
    """

    PARTITIONS = tuple((topic, index) for topic in "abc" for index in range(4))
    PRODUCERS = 6
    TRANSACTIONS = 8
    CANCELLED = 2
    """The shard that is cancelled."""

    def __init__(self, world: MarkerWorld, *, is_generation_2: bool) -> None:
        self.world = world
        self.is_generation_2 = is_generation_2
        self.over: set[Sent] = set()
        self.late: list[Sent] = []
        self.chance = world.simulation.chance
        self.reported: Counter[tuple[int, int]] = Counter()
        self.missing: list[Sent] = []
        self.deleted: set[Where] = set()
        self.sent_after_cancel: list[Sent] = []

    async def run(self) -> None:
        world, chance = self.world, self.chance
        for where in self.PARTITIONS:
            world.put(where, chance.randrange(3))
        world.code = self._code
        world.latency_s = lambda: chance.expovariate(1 / (1.0 if chance.random() < 0.03 else 0.01))
        faults = asyncio.ensure_future(self._faults())
        producers = [asyncio.ensure_future(self._produce(number)) for number in range(self.PRODUCERS)]
        await asyncio.sleep(chance.uniform(1, 20))
        for producer in producers[self.CANCELLED :: 3]:
            producer.cancel()
        world.sender.cancel(self.CANCELLED)
        mark = len(world.sent)
        ours = [producer for number, producer in enumerate(producers) if number % 3 != self.CANCELLED]
        await asyncio.wait(ours, timeout=60)
        faults.cancel()
        self._heal()
        await asyncio.wait_for(asyncio.gather(*ours), 600)
        self.sent_after_cancel = [sent for sent in world.sent[mark:] if sent[0] % 3 == self.CANCELLED]

    def check(self) -> None:
        assert self.sent_after_cancel == []
        assert self.missing == []
        assert self.late == [], "a marker was accepted after the end of its transaction was reported"
        ours = [number for number in range(self.PRODUCERS) if number % 3 != self.CANCELLED]
        assert {key for key in self.reported if key[0] in ours} == {
            (number, epoch) for number in ours for epoch in range(self.TRANSACTIONS)
        }
        assert set(self.reported.values()) == {1}
        firsts: dict[tuple[int, Where], int] = {}
        for producer_id, epoch, where in self.world.sent:
            newest = firsts.setdefault((producer_id, where), epoch)
            assert epoch >= newest, "a marker was sent after a later one of its producer and partition"
            firsts[(producer_id, where)] = epoch

    async def _produce(self, number: int) -> None:
        """End transactions. Some begin before the earlier one has ended, as after a reload of the shard."""
        waiting = []
        for epoch in range(self.TRANSACTIONS):
            living = [where for where in self.PARTITIONS if where not in self.deleted]
            partitions = frozenset(self.chance.sample(living, self.chance.randint(1, min(5, len(living)))))
            ended = Ended(number, epoch, partitions, is_generation_2=self.is_generation_2)
            waiting.append(asyncio.ensure_future(self._end(ended)))
            await asyncio.sleep(self.chance.expovariate(1 / 0.3))
            if self.chance.random() < 0.7:
                await asyncio.gather(*waiting)
        await asyncio.gather(*waiting)

    async def _end(self, ended: Ended) -> None:
        await self.world.send(ended, shard=ended.producer_id % 3, within_s=10_000)
        self.reported[ended.producer_id, ended.producer_epoch] += 1
        self.over |= set(all_of(ended))
        accepted = set(self.world.accepted)
        self.missing += [
            marker for marker in all_of(ended) if marker not in accepted and marker[2] not in self.deleted
        ]

    def _code(self, marker: Sent) -> ErrorCode:
        if self.chance.random() < 0.1:
            return self.chance.choice([ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER])
        if marker in self.over and not self.is_generation_2:
            self.late.append(marker)
        return ErrorCode.NONE

    async def _faults(self) -> None:
        world, chance = self.world, self.chance
        while True:
            await asyncio.sleep(chance.expovariate(1 / 0.2))
            name = f"b{chance.choice((1, 2))}"
            match chance.randrange(8):
                case 0 | 1 | 2:
                    asyncio.ensure_future(self._move(chance.choice(self.PARTITIONS)))  # noqa: RUF006
                case 3:
                    losses = {("b0", name): 0.2, (name, "b0"): 0.2}
                    world.network.change_links(Links(losses=losses))
                case 4:
                    world.network.cut(*chance.sample(["b0", name], 2))
                case 5:
                    world.network.heal()
                    world.network.abandon_connections("b0", name)
                case 6:
                    broker = world.brokers[int(name[1])]
                    if broker.running:
                        broker.crash()
                    else:
                        broker.start()
                case 7:
                    if len(self.deleted) < 4:
                        asyncio.ensure_future(self._delete(chance.choice(self.PARTITIONS)))  # noqa: RUF006

    async def _move(self, where: Where) -> None:
        if where in self.deleted:
            return
        self.world.leaders[where] = leader = self.chance.randrange(3)
        await asyncio.sleep(self.chance.expovariate(1 / 0.3))
        if where not in self.deleted:
            # A later move may be visible already: then this one is skipped, because images never go back.
            self.world.image[where] = self.world.leaders[where] if self.chance.random() < 0.8 else leader

    async def _delete(self, where: Where) -> None:
        self.deleted.add(where)
        self.world.leaders.pop(where, None)
        await asyncio.sleep(self.chance.expovariate(1 / 0.3))
        self.world.image.pop(where, None)

    def _heal(self) -> None:
        world = self.world
        world.network.heal()
        world.latency_s = lambda: 0.001
        for broker in world.brokers.values():
            if not broker.running:
                broker.start()
        world.image.clear()
        world.image.update(world.leaders)
