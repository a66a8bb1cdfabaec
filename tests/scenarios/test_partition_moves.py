"""Moves of a partition to another broker: what clients see, and failures of each step.

Two real brokers and a controller in one simulated world (docs/design/moves-and-failover.md).
"""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ponor_broker.partitions.handoff.handoff import Stage
from ponor_broker.settings import BrokerSettings
from ponor_controller.settings import ControllerSettings
from ponor_kafka.errors import ErrorCode
from ponor_metadata.client.store_marker import PREFIX
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.topics import MOVES
from ponor_runtime.trace_recording import RecordedTracing

from tests.scenarios.moving_world import MovingWorld

PRODUCER = 4711
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
SHORT_MOVES = ControllerSettings(reelection_timeout_ms=2_000)


@pytest.mark.parametrize("wal", WalKind)
def test_a_moved_partition_keeps_its_data_and_state(wal: WalKind) -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        target = world.other(source)
        for number in range(3):
            answer = await world.produce(source, 2, producer_id=PRODUCER, sequence=2 * number)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 2 * number)
        assert await world.move(target) == [ErrorCode.NONE]
        await world.until(lambda: world.leader() == target)
        assert world.row().leader_epoch == 1
        # The last batch is recognised as a repeat, and the next one is accepted.
        repeat = await world.produce(target, 2, producer_id=PRODUCER, sequence=4)
        assert (repeat.error_code, repeat.base_offset) == (ErrorCode.NONE, 4)
        new = await world.produce(target, 1, producer_id=PRODUCER, sequence=6)
        assert (new.error_code, new.base_offset) == (ErrorCode.NONE, 6)
        found = await world.fetch(target)
        assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, 7)
        assert await world.end_offset(target) == (ErrorCode.NONE, 7, 1)
        assert await world.epoch_end(target, 0) == (0, 6)
        assert await world.epoch_end(target, 1) == (1, 7)

    MovingWorld(1, wal=wal).tell(story)


def test_the_old_leader_names_the_new_one() -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        target = world.other(source)
        await world.move(target)
        await world.until(lambda: world.leader() == target)
        node = world.cluster.node_of(target)
        produced = await world.produce(source)
        assert produced.error_code == NOT_LEADER
        assert produced.current_leader is not None
        assert (produced.current_leader.leader_id, produced.current_leader.leader_epoch) == (node, 1)
        assert world.node_endpoints == {node: (target, 9092)}
        fetched = await world.fetch(source)
        assert (fetched.error_code, fetched.high_watermark) == (NOT_LEADER, -1)
        assert fetched.current_leader is not None
        assert (fetched.current_leader.leader_id, fetched.current_leader.leader_epoch) == (node, 1)
        assert (await world.end_offset(source))[0] == NOT_LEADER

    MovingWorld(2).tell(story)


@pytest.mark.parametrize("wal", WalKind)
def test_repeated_moves_under_load_lose_duplicate_and_reorder_nothing(wal: WalKind) -> None:
    moves = 12

    async def story(world: MovingWorld) -> None:
        acknowledged: list[int] = []
        stopping = asyncio.Event()
        at = world.leader()

        async def produce() -> None:
            nonlocal at
            sequence = 0
            while not stopping.is_set():
                answer = await world.produce(at, 1, producer_id=PRODUCER, sequence=sequence)
                if answer.error_code == ErrorCode.NONE:
                    acknowledged.append(answer.base_offset)
                    sequence += 1
                else:
                    assert answer.error_code == NOT_LEADER, answer.error_message
                    assert answer.current_leader is not None
                    at = world.cluster.broker_of(answer.current_leader.leader_id) or at

        producing = asyncio.ensure_future(produce())
        watermark = -1
        for _ in range(moves):
            target = world.other(world.leader())
            assert await world.move(target) == [ErrorCode.NONE]
            await world.until(lambda target=target: world.leader() == target)  # type: ignore[misc]
            for name in world.cluster.brokers:  # a reported end of the log never moves back
                code, end, _ = await world.end_offset(name)
                if code == ErrorCode.NONE:
                    assert end >= watermark
                    watermark = end
            await asyncio.sleep(0.2)
        stopping.set()
        await producing
        assert acknowledged == list(range(len(acknowledged)))
        assert len(acknowledged) > 5 * moves
        assert world.row().leader_epoch == moves
        assert (await world.end_offset(world.leader()))[1] == len(acknowledged)

    MovingWorld(3, wal=wal).tell(story)


def test_a_move_cancelled_by_a_client_in_time_has_no_effect() -> None:
    """The store does not accept the residue: the partition serves before and after the cancellation."""

    async def story(world: MovingWorld) -> None:
        source = world.leader()
        await world.produce(source)
        store = world.store_of_faults()
        store.down = True
        await world.move(world.other(source))
        await world.until(lambda: world.is_at(source, Stage.WAITING))
        assert (await world.produce(source)).error_code == ErrorCode.NONE
        assert await world.move(None) == [ErrorCode.NONE]
        await world.until(lambda: world.handoff(source) is None)
        store.down = False
        assert (await world.produce(source)).base_offset == 2
        assert (world.leader(), world.row().leader_epoch, world.moves()) == (source, 0, 0)
        assert await world.move(None) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]

    MovingWorld(4).tell(story)


def test_a_source_cancels_its_move_when_the_store_fails() -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        await world.produce(source)
        world.store_of_faults().down = True
        await world.move(world.other(source))
        await world.until(lambda: world.moves() == 1)
        await world.until(lambda: world.moves() == 0)
        assert (world.leader(), world.row().leader_epoch) == (source, 0)
        assert (await world.produce(source)).base_offset == 1
        assert source in world.cluster.serving, "it was not fenced as stuck"

    MovingWorld(14, controller=SHORT_MOVES).tell(story)


@pytest.mark.parametrize("who", ["client", "source"])
def test_a_sealed_partition_continues_after_a_cancelled_move(who: str) -> None:
    """The store stalls when the rest is uploaded. Requests sent meanwhile get a late answer or a
    retriable error.
    """

    async def story(world: MovingWorld) -> None:
        source = world.leader()
        await world.produce(source)
        store = world.store_of_faults()
        await world.move(world.other(source))
        await world.until(lambda: world.is_at(source, Stage.SEALED))
        store.down = True
        sent = asyncio.ensure_future(world.produce(source))
        assert (await world.end_offset(source))[:2] == (ErrorCode.NONE, 1), "reads are unchanged"
        if who == "client":
            assert await world.move(None, by=world.other(source)) == [ErrorCode.NONE]
            answer = await sent
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)
        else:
            answer = await sent
            assert answer.error_code == NOT_LEADER, "half of the re-election timeout is longer than any wait"
            await world.until(lambda: world.moves() == 0)
            assert (await world.produce(source)).base_offset == 1
        assert (world.leader(), world.row().leader_epoch) == (source, 0)
        store.down = False
        await world.move(world.other(source))
        await world.until(lambda: world.leader() != source)
        assert (await world.produce(world.leader())).base_offset == 2

    MovingWorld(5, controller=SHORT_MOVES).tell(story)


def test_a_late_cancellation_ends_at_the_source_with_a_new_epoch_or_at_the_target() -> None:
    async def story(world: MovingWorld) -> None:
        ended: dict[str, int] = {}
        for _ in range(12):
            source = world.leader()
            epoch = world.row().leader_epoch
            await world.move(world.other(source))
            await world.until(lambda source=source: world.handoff(source) is not None)  # type: ignore[misc]
            await world.until(
                lambda source=source: (  # type: ignore[misc]
                    world.handoff(source) is None or world.is_at(source, Stage.CLOSING)
                )
            )
            await world.move(None)
            await world.until(lambda: world.moves() == 0)
            await world.until(lambda source=source: world.handoff(source) is None)  # type: ignore[misc]
            assert world.row().leader_epoch == epoch + 1
            place = "source" if world.leader() == source else "target"
            ended[place] = ended.get(place, 0) + 1
            answer = await world.produce(world.leader())
            assert answer.error_code == ErrorCode.NONE, answer.error_message
        assert (await world.end_offset(world.leader()))[1] == 12

    MovingWorld(6).tell(story)


@pytest.mark.parametrize("stage", [Stage.WAITING, Stage.SEALED, Stage.CLOSING])
@pytest.mark.parametrize("wal", WalKind)
def test_a_source_that_dies_during_a_move_loses_nothing(stage: Stage, wal: WalKind) -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        for number in range(5):
            assert (await world.produce(source)).base_offset == number
        await world.move(world.other(source))
        await world.until(lambda: world.is_at(source, stage))
        world.cluster.processes[source].crash(power_loss=True)
        world.forget_client(source)
        if wal is WalKind.FILE:
            await asyncio.sleep(1.0)
            world.cluster.start(source)
        await world.until(world.serves_somewhere)
        answer = await world.produce(world.leader())
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 5), answer.error_message
        assert world.row().leader_epoch > 0

    MovingWorld(7, wal=wal, controller=SHORT_MOVES).tell(story)


def test_a_hundred_moves_share_uploads_and_operations() -> None:
    count = 100

    async def story(world: MovingWorld) -> None:
        mine = [index for index in range(count) if world.leader(index) == world.cluster.brokers[0]]
        target = world.cluster.brokers[1]
        for index in mine:
            await world.produce(world.cluster.brokers[0], 1, index)
        assert world.cluster.store is not None
        bucket = world.cluster.store.bucket
        before = set(bucket.put_at_ms)
        indexes = world.row().leader_epoch, world.committed_index()
        assert await world.move(target, *mine) == [ErrorCode.NONE] * len(mine)
        await world.until(lambda: all(world.leader(index) == target for index in mine))
        # The nodes' records of the controllers' log (`ponor_metadata.client.seen_history`) are not
        # uploads.
        uploaded = [key for key in bucket.put_at_ms if key not in before and not key.startswith(PREFIX)]
        assert len(uploaded) <= 4
        assert world.committed_index() - indexes[1] < len(mine)
        for index in mine:
            answer = await world.produce(target, 1, index)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)

    MovingWorld(8).tell(story, partitions=count)


def test_requests_are_refused_immediately_when_parking_is_full() -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        await world.produce(source)
        store = world.store_of_faults()
        await world.move(world.other(source))
        await world.until(lambda: world.is_at(source, Stage.SEALED))
        store.down = True
        began_s = world.simulation.loop.time()
        assert (await world.produce(source)).error_code == NOT_LEADER
        assert world.simulation.loop.time() - began_s < 0.1, "refused at once"

    MovingWorld(9, broker=BrokerSettings(park_bytes_max=0)).tell(story)


def test_a_waiting_fetch_gets_the_new_leader() -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        await world.produce(source)
        waiting = asyncio.ensure_future(world.fetch(source, 1, max_wait_ms=20_000))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        target = world.other(source)
        await world.move(target, by=target)
        answer = await waiting
        assert answer.error_code == NOT_LEADER
        assert answer.current_leader is not None
        assert answer.current_leader.leader_id == world.cluster.node_of(target)

    MovingWorld(10).tell(story)


def test_a_move_is_one_trace_with_a_span_for_every_step() -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        target = world.other(source)
        exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        for name in world.cluster.brokers:
            world.telemetry_of(name).tracing = RecordedTracing(provider.get_tracer("story"))
        await world.move(target)
        await world.until(lambda: world.leader() == target and world.serves_somewhere())
        await world.until(lambda: world.handoff(source) is None)
        spans = exporter.get_finished_spans()
        (asked,) = [span for span in spans if span.name == "ponor.kafka.request"]
        assert asked.context is not None
        of_move = [
            span.name for span in spans if span.context and span.context.trace_id == asked.context.trace_id
        ]
        steps = [name for name in of_move if name.startswith("ponor.move.")]
        assert sorted(steps) == [
            f"ponor.move.{step}" for step in ("close", "depart", "drain", "open", "residue", "tail")
        ]
        for name in world.cluster.brokers:
            world.telemetry_of(name).tracing = None

    MovingWorld(11).tell(story)


def test_another_target_replaces_the_first() -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        first, second = [name for name in world.cluster.brokers if name != source]
        store = world.store_of_faults()
        await world.produce(source)
        store.down = True
        assert await world.move(first) == [ErrorCode.NONE]
        assert await world.listed() == [(0, world.cluster.node_of(first), world.cluster.node_of(source))]
        assert await world.move(first) == [ErrorCode.NONE], "a repeated request changes nothing"
        assert await world.move(second) == [ErrorCode.NONE]
        assert await world.listed() == [(0, world.cluster.node_of(second), world.cluster.node_of(source))]
        store.down = False
        await world.until(lambda: world.moves() == 0)
        assert world.leader() == second
        asked = world.image_of(world.cluster.brokers[0])
        await world.until(lambda: len(asked[MOVES]) == 0)
        assert await world.listed() == []
        assert await world.move(second) == [ErrorCode.NONE], "it is there"
        assert (await world.produce(second)).base_offset == 1

    MovingWorld(12, brokers=3).tell(story)


def test_a_target_that_dies_before_its_election_leaves_the_partition_at_the_source() -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        target = world.other(source)
        store = world.store_of_faults()
        await world.produce(source)
        store.down = True
        await world.move(target)
        world.cluster.processes[target].crash()
        await world.until(lambda: world.moves() == 0)
        store.down = False
        assert (await world.produce(source)).base_offset == 1
        assert (world.leader(), world.row().leader_epoch) == (source, 0)
        world.cluster.start(target)
        await world.until(lambda: target in world.cluster.serving)

    MovingWorld(13).tell(story)
