"""A broker that leads more partitions than one batch holds registers again."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1.records_pb2 import NODE_ROLE_BROKER
from ponor_controller.domains.nodes import registration
from ponor_controller.domains.nodes.registration import Registration, register_node
from ponor_metadata.nouns.nodes import NODES, WalKind
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import ClusterOrdinal, NodeId, compose_node_id
from ponor_simulation.links import DelayLaw, Links
from ponor_simulation.process import wait_until

from services.controller.tests.ledger import Ledger
from services.controller.tests.quorum_world import NAMES, SETTINGS, Clients, QuorumWorld

PER_BATCH = 4
TOPICS = 5
PARTITIONS_EACH = 6
NODE = compose_node_id(ClusterOrdinal(7), 0)
NODE_OF_WORLD = compose_node_id(ClusterOrdinal(1), 0)
SLOW_S = 0.12
"""Delay between controllers with which the registration takes longer than a process waits for its Welcome."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "PARTITIONS_PER_BATCH_MAX", PER_BATCH)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    broker = ledger.register(0)
    for number in range(TOPICS):
        body = wire.CreateTopic(name=f"t{number}", partitions=PARTITIONS_EACH, replication_factor=-1)
        ledger.do(broker, create_topic=body)
    return ledger


def step(ledger: Ledger, process: bytes, before: Registration | None = None) -> Registration:
    """Decide once and apply."""
    hello = wire.Hello(
        node_id=NODE, role=NODE_ROLE_BROKER, incarnation=process * 16, kafka_host="localhost", kafka_port=9092
    )
    raised = None if before is None else before.raised
    done = register_node(hello, ledger.view, ledger.now_ms, raised)
    changed = [each.WhichOneof("kind") for each in done.records].count("partition_changed")
    assert changed <= PER_BATCH
    ledger.apply(done.records)
    return done


def epochs(ledger: Ledger) -> set[int]:
    return {row.leader_epoch for row in ledger.image[PARTITIONS]}


def test_every_leader_epoch_rises_once_before_the_process_has_rights(ledger: Ledger) -> None:
    done = step(ledger, b"b")
    while done.raised is not None:
        node = ledger.image[NODES].get(NODE)
        assert node is not None
        assert (node.node_epoch, node.fenced) == (1, True)
        done = step(ledger, b"b", done)
    node = ledger.image[NODES].get(NODE)
    assert node is not None
    assert (node.node_epoch, node.incarnation, node.fenced) == (2, b"b" * 16, False)
    assert epochs(ledger) == {1}
    assert not step(ledger, b"b").records


def test_proposed_batches_count(ledger: Ledger) -> None:
    ledger.hold = True
    done = step(ledger, b"b")
    while done.raised is not None:
        done = step(ledger, b"b", done)
    ledger.commit()
    assert epochs(ledger) == {1}


def test_topics_that_are_deleted_meanwhile_are_left_out(ledger: Ledger) -> None:
    other = ledger.register(1)
    done = step(ledger, b"b")
    for topic_id in sorted({row.topic_id for row in ledger.image[PARTITIONS]})[::2]:
        assert done.raised is not None
        ledger.do(other, delete_topic=wire.DeleteTopic(topic_id=topic_id))
        done = step(ledger, b"b", done)
    while done.raised is not None:
        done = step(ledger, b"b", done)
    assert epochs(ledger) == {1}


def test_of_two_processes_at_once_the_last_one_raises_all_epochs_again(ledger: Ledger) -> None:
    one, other = step(ledger, b"b"), step(ledger, b"c")
    while one.raised is not None:
        one = step(ledger, b"b", one)
        if other.raised is not None and one.raised is not None:
            other = step(ledger, b"c", other)
    before = {(row.topic_id, row.partition): row.leader_epoch for row in ledger.image[PARTITIONS]}
    while other.raised is not None:
        other = step(ledger, b"c", other)
    assert [one.node_epoch, other.node_epoch] == [2, 3]
    after = {(row.topic_id, row.partition): row.leader_epoch for row in ledger.image[PARTITIONS]}
    assert all(after[key] > epoch for key, epoch in before.items()), (
        "the first of them may have opened streams"
    )


@pytest.mark.parametrize("seed", range(6))
def test_no_other_broker_takes_over_while_the_next_process_registers(seed: int) -> None:
    """Seeds that are odd kill the leading controller during the registration."""
    world = QuorumWorld(seed)
    led: dict[str, list[tuple[NodeId, int]]] = {}

    def leaders(clients: Clients) -> list[tuple[NodeId, int]]:
        return [(row.leader_id, row.leader_epoch) for row in clients.subscription.image[PARTITIONS]]

    async def idle(_: Clients) -> None:
        await asyncio.Event().wait()

    async def first(clients: Clients) -> None:
        for number in range(TOPICS):
            body = wire.CreateTopic(name=f"t{number}", partitions=PARTITIONS_EACH, replication_factor=-1)
            try:
                await clients.session.submit(wire.Operation(create_topic=body))
            except OperationError as error:
                raise AssertionError(error) from error
        led["before"] = []
        await asyncio.Event().wait()

    async def second(clients: Clients) -> None:
        index = (await clients.session.submit(wire.Operation(put_key=wire.PutKey(key="k")))).commit_index
        await clients.subscription.wait_for(index, 60_000)
        led["after"] = leaders(clients)
        await clients.runtime.clock.sleep(30)
        led["later"] = leaders(clients)

    broker = world.node("b0", first, number=0, wal=WalKind.OBJECT)

    async def story() -> None:
        for process in (*world.controllers.values(), broker):
            process.start()
        await wait_until(lambda: "before" in led)
        world.node("b1", idle, number=1, wal=WalKind.OBJECT).start()
        await asyncio.sleep(5)
        broker.crash()
        world.node("b0-again", second, number=0, wal=WalKind.OBJECT).start()
        if seed % 2:
            await asyncio.sleep(world.chance.uniform(0.0, 0.05))
            leader = world.controllers[await world.leader()]
            leader.crash()
            await asyncio.sleep(2)
            leader.start()
        await wait_until(lambda: "later" in led)

    world.simulation.run(story())
    nodes = {compose_node_id(ClusterOrdinal(1), number) for number in (0, 1)}
    assert len(led["later"]) == TOPICS * PARTITIONS_EACH
    assert {leader_id for leader_id, _ in led["later"]} <= nodes
    assert all(epoch > 0 for _, epoch in led["after"])
    if not seed % 2:
        assert set(led["after"]) == set(led["later"]) == {(compose_node_id(ClusterOrdinal(1), 0), 1)}


@pytest.mark.parametrize("seed", range(3))
def test_a_process_that_connects_again_continues_its_registration(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each connection raised all epochs again, and one that was over replaced the live session."""
    monkeypatch.setattr(registration, "PARTITIONS_PER_BATCH_MAX", 1)
    world = QuorumWorld(seed)
    begun: list[str] = []
    epochs: Counter[int] = Counter()

    async def first(clients: Clients) -> None:
        for number in range(TOPICS):
            body = wire.CreateTopic(name=f"t{number}", partitions=PARTITIONS_EACH, replication_factor=-1)
            await clients.session.submit(wire.Operation(create_topic=body))
        begun.append("first")
        await asyncio.Event().wait()

    async def second(clients: Clients) -> None:
        await clients.subscription.wait_for(clients.session.registered_index, 60_000)
        epochs.update(row.leader_epoch for row in clients.subscription.image[PARTITIONS])
        await clients.runtime.clock.sleep(2 * SETTINGS.session_timeout_ms / 1_000)
        node = clients.subscription.image[NODES].get(NODE_OF_WORLD)
        assert node is not None
        assert (node.node_epoch, node.fenced) == (2, False)
        begun.append("second")

    async def story() -> None:
        broker = world.node("b0", first)
        for process in (*world.controllers.values(), broker):
            process.start()
        await wait_until(lambda: "first" in begun)
        broker.crash()
        slow = DelayLaw((SLOW_S, SLOW_S), tail_share=0.0)
        pairs = ((one, other) for one in NAMES for other in NAMES if one != other)
        world.network.change_links(Links(delays=dict.fromkeys(pairs, slow)))
        world.node("b0-again", second).start()
        await wait_until(lambda: "second" in begun)

    world.simulation.run(story())
    assert epochs.total() == TOPICS * PARTITIONS_EACH
    assert set(epochs) <= {1, 2}
    assert epochs[2] <= 4, "a batch that was not committed when the process connected again"
