"""Failovers of brokers in simulation: no acknowledged record is lost, whichever controller leads."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.nouns.nodes import NODES
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_runtime.identity import NodeEpoch
from ponor_simulation.process import wait_until

from services.controller.tests.brokers_with_logs import Broker, BrokersWorld

SEEDS = range(int(os.environ.get("PONOR_SEEDS", "2")))


def log_of(witness: Broker, owner: Broker, epoch: int) -> WalRow | None:
    return witness.image[WALS].get((owner.node_id, NodeEpoch(epoch)))


def is_fenced(witness: Broker, broker: Broker) -> bool:
    row = witness.image[NODES].get(broker.node_id)
    return row is not None and row.fenced


def led(witness: Broker) -> Counter[int]:
    return Counter(row.leader_id for row in witness.image[PARTITIONS])


def test_a_dead_brokers_partitions_and_log_are_reassigned_repeatedly() -> None:
    cluster = BrokersWorld(1)
    first, second, third = cluster.brokers

    async def story() -> None:
        await cluster.begin(partitions=9)
        assert led(third) == {first.node_id: 3, second.node_id: 3, third.node_id: 3}
        epoch = first.epoch
        second.stalls = True
        first.process.crash()
        await wait_until(lambda: is_fenced(third, first))
        row = log_of(third, first, epoch)
        assert row is not None
        assert (row.recoverer_id, row.token) == (second.node_id, 1), (
            "of those that recover nothing, the first"
        )
        assert set(led(third).values()) == {4, 5}, "spread evenly in the same batch"

        await asyncio.sleep(2)
        assert log_of(third, first, epoch) is not None, "its recoverer hangs"
        second_epoch = second.epoch
        second.process.crash()
        await wait_until(lambda: is_fenced(third, second))
        row = log_of(third, first, epoch)
        assert row is not None
        assert (row.recoverer_id, row.token) == (third.node_id, 2)
        assert led(third) == {third.node_id: 9}

        await cluster.until_served([third])
        assert sorted(third.closed) == [(first.node_id, epoch), (second.node_id, second_epoch)]
        assert [row.node_id for row in third.image[WALS]] == [third.node_id], (
            "rows are deleted with their logs"
        )
        cluster.check(third)

    cluster.world.simulation.run(story())


MOMENTS: dict[str, Callable[[Broker, Broker, int], bool]] = {
    "when the broker dies": lambda *_: True,
    "when it is fenced": lambda witness, dead, _: is_fenced(witness, dead),
    "when its log is assigned": lambda witness, dead, epoch: (
        (row := log_of(witness, dead, epoch)) is None or row.token > 0
    ),
    "when something of it is recovered": lambda witness, dead, epoch: (
        any(
            row.node_id == dead.node_id and row.node_epoch == epoch and not row.open
            for row in witness.image[STREAMS]
        )
        or log_of(witness, dead, epoch) is None
    ),
    "when its log is closed": lambda witness, dead, epoch: log_of(witness, dead, epoch) is None,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_leading_controller_dies_during_a_failover(moment: str) -> None:
    cluster = BrokersWorld(2)
    first, second, third = cluster.brokers

    async def story() -> None:
        await cluster.begin()
        epoch = first.epoch
        first.process.crash()
        await wait_until(lambda: MOMENTS[moment](second, first, epoch))
        leader = await cluster.world.leader()
        cluster.world.controllers[leader].crash(power_loss=True)
        await cluster.until_served([second, third])
        cluster.check(second)

    cluster.world.simulation.run(story())


def test_a_restarted_broker_recovers_its_own_log_and_continues() -> None:
    cluster = BrokersWorld(3)
    first, second, third = cluster.brokers

    async def story() -> None:
        await cluster.begin()
        before, epoch = led(second), first.epoch
        first.process.crash()
        await asyncio.sleep(0.2)
        first.process.start()
        await wait_until(lambda: first.process.runtime is not None and (first.node_id, epoch) in first.closed)
        await cluster.until_served([second, first, third])
        assert led(second) == before, "it returned before it was suspected"
        assert not is_fenced(second, first)
        cluster.check(second)

    cluster.world.simulation.run(story())


@pytest.mark.parametrize("away_s", [0.9, 0.98, 1.0, 1.1, 2.0, 15.0])
def test_a_new_process_is_not_suspected_for_the_silence_of_its_predecessor(away_s: float) -> None:
    cluster = BrokersWorld(8)
    first, second, third = cluster.brokers

    async def story() -> None:
        await cluster.begin()
        first.process.crash()
        await asyncio.sleep(away_s)
        epoch = first.epoch
        first.process.start()
        await wait_until(lambda: first.is_ready and first.epoch > epoch)
        await asyncio.sleep(5)
        row = second.image[NODES].get(first.node_id)
        assert row is not None
        assert (row.node_epoch, row.fenced) == (epoch + 1, False)
        await cluster.until_served([second, first, third])

    cluster.world.simulation.run(story())


def test_the_only_broker_is_never_fenced_for_being_silent() -> None:
    cluster = BrokersWorld(4, brokers=1)
    (broker,) = cluster.brokers

    async def story() -> None:
        await cluster.begin()
        image = broker.image
        broker.process.pause()
        await asyncio.sleep(10)
        broker.process.resume()
        await cluster.until_served([broker])
        row = image[NODES].get(broker.node_id)
        assert row is not None
        assert not row.fenced

    cluster.world.simulation.run(story())


def test_no_broker_is_suspected_while_the_cluster_stops() -> None:
    cluster = BrokersWorld(5)
    first, second, third = cluster.brokers

    async def story() -> None:
        await cluster.begin()
        await cluster.announce_stop(ttl_ms=20_000)
        epoch = first.epoch
        first.process.crash()
        await asyncio.sleep(12)
        assert not is_fenced(second, first)
        row = log_of(second, first, epoch)
        assert row is not None
        assert row.token == 0
        await cluster.until_served([second, third])  # the stop did not happen: the announcement ends
        cluster.check(second)

    cluster.world.simulation.run(story())


def test_a_paused_broker_resumed_after_its_recovery_acknowledges_nothing_and_stops() -> None:
    cluster = BrokersWorld(6)
    first, second, third = cluster.brokers

    async def story() -> None:
        await cluster.begin()
        log = (first.node_id, first.epoch)
        first.process.pause()
        await cluster.until_served([second, third])
        slots = len(cluster.store.slots[log])
        first.process.resume()
        await wait_until(lambda: not first.process.running, timeout_s=30)
        assert "fenced" in str(first.process.failure) or "stop" in str(first.process.failure)
        assert len(cluster.store.slots[log]) == slots
        cluster.check(second)

    cluster.world.simulation.run(story())


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_in_any_order_of_failures(seed: int) -> None:
    cluster = BrokersWorld(200 + seed, brokers=4)
    world, chance = cluster.world, cluster.world.chance

    async def story() -> None:
        await cluster.begin()
        for _ in range(10):
            broker = chance.choice(cluster.brokers)
            running = [each for each in cluster.brokers if each.process.running and not each.process.paused]
            match chance.randrange(6):
                case 0 if broker in running and len(running) > 2:
                    broker.process.crash()
                case 1 if broker in running and len(running) > 2:
                    broker.process.pause()
                case 2 if not broker.process.running:
                    broker.process.start()
                case 3 if broker.process.running and broker.process.paused:
                    broker.process.resume()
                case 4:
                    leader = await world.leader()
                    world.controllers[leader].crash(power_loss=chance.random() < 0.5)
                case _:
                    world.heal()
            await asyncio.sleep(chance.uniform(0, 3))
            world.heal()
        await _bring_all_back(cluster)
        await cluster.until_served(cluster.brokers)
        cluster.check(cluster.brokers[0])

    world.simulation.run(story())


async def _bring_all_back(cluster: BrokersWorld) -> None:
    for broker in cluster.brokers:
        if broker.process.running and broker.process.paused:
            broker.process.resume()
    await asyncio.sleep(10)  # fenced brokers detect it
    for broker in cluster.brokers:
        if not broker.process.running:
            broker.process.start()
    await asyncio.sleep(5)


def test_a_drained_broker_gets_no_partitions() -> None:
    cluster = BrokersWorld(7)
    first, second, third = cluster.brokers

    async def story() -> None:
        await cluster.begin()
        await second.submit(set_drain=wire.SetDrain(node_id=second.node_id, draining=True))
        first.process.crash()
        await wait_until(lambda: is_fenced(third, first))
        assert led(third)[first.node_id] == 0
        assert led(third)[second.node_id] <= 2
        await wait_until(lambda: any(log[0] == first.node_id for log in third.closed))

    cluster.world.simulation.run(story())
