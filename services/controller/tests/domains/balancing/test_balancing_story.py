"""Balancing with three real controllers and brokers that join, carry load, and leave; in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from ponor.controller.v1 import cluster_service_pb2 as cluster_wire
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.settings import BalanceSettings, ControllerSettings
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, MoveCause
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import wait_until

from services.controller.tests.moving_broker import MovesWorld, MovingBroker
from services.controller.tests.quorum_world import ADDRESSES, Clients

SETTINGS = ControllerSettings(session_timeout_ms=2_000, progress_interval_ms=200)
SOON = replace(SETTINGS, balance=BalanceSettings(balance_scale_down_ms=60_000))
"""Fewer brokers are wanted after one minute instead of ten, because waiting in virtual time costs
CPU for three controllers."""
MB = 1_000_000


class LoadedWorld(MovesWorld):
    """Brokers that report the traffic of their partitions every second. Clients cause the same
    traffic wherever partitions are.
    """

    def __init__(self, seed: int, brokers: int = 3, settings: ControllerSettings = SETTINGS) -> None:
        self.rates: dict[int, tuple[int, int]] = {}
        """Bytes per second in and out of a partition."""
        self.noise = 0.1
        self.began: list[tuple[int, int, int]] = []
        """Moves of the balancer seen in the image: partition, from, to."""
        super().__init__(seed, brokers=0, settings=settings)
        self.brokers = [MovingBroker(number) for number in range(brokers)]
        self.processes = [
            self.world.node(f"b{each.number}", self._program(each), number=each.number)
            for each in self.brokers
        ]
        self.tool: ClusterClient | None = None
        self.world.simulation.process("tool", self._tool)

    def _program(self, broker: MovingBroker) -> Callable[[Clients], Awaitable[None]]:
        async def program(clients: Clients) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(broker.run(clients))
                group.create_task(self._report(broker, clients))

        return program

    async def _report(self, broker: MovingBroker, clients: Clients) -> None:
        was_busy = False
        while True:
            await clients.runtime.clock.sleep(1.0)
            report = wire.LoadReport(window_ms=1_000, cpu_permille=50)
            for row in broker.image[PARTITIONS]:
                rates = self.rates.get(row.partition)
                if row.leader_id == broker.node_id and row.topic_id == self.topic_id and rates:
                    jitter = 1 + self.noise * clients.runtime.randomness.uniform(-1, 1)
                    report.partitions.add(
                        topic_id=row.topic_id,
                        partition=row.partition,
                        in_bytes_per_s=int(rates[0] * jitter),
                        out_bytes_per_s=int(rates[1] * jitter),
                    )
            report.in_bytes_per_s = sum(each.in_bytes_per_s for each in report.partitions)
            report.out_bytes_per_s = sum(each.out_bytes_per_s for each in report.partitions)
            is_busy = len(report.partitions) > 0
            if is_busy or was_busy:
                clients.session.report_load(report)
            was_busy = is_busy

    async def _tool(self, runtime: Runtime) -> None:
        self.tool = ClusterClient(runtime.network, runtime.clock, ADDRESSES)
        await asyncio.Event().wait()

    async def begin_with(self, brokers: int, partitions: int) -> None:
        """Run this many brokers that lead a topic of this many partitions."""
        for name, process in self.world.simulation.processes.items():
            if not name.startswith("b") or int(name[1:]) < brokers:
                process.start()
        await wait_until(lambda: all(each.clients for each in self.brokers[:brokers]), timeout_s=30)
        body = wire.CreateTopic(name="orders", partitions=partitions, replication_factor=-1)
        self.topic_id = (await self.brokers[0].do(create_topic=body)).topic_held.topic_id
        await self.until(lambda: all(self.is_open(number) for number in range(partitions)))
        clients = self.brokers[0].clients
        assert clients is not None
        clients.subscription.listeners.append(self._watch)

    async def join(self, number: int) -> None:
        self.processes[number].start()
        await self.until(lambda: self.brokers[number].clients is not None)

    async def explain(self) -> cluster_wire.BalanceDescription:
        assert self.tool is not None
        return await self.tool.describe_balance(timeout_s=5)

    async def pause(self, paused: bool) -> None:
        assert self.tool is not None
        await self.tool.pause_balancer(paused, timeout_s=5)

    def carried(self) -> dict[int, int]:
        """Current bytes in per second of each broker."""
        carried: Counter[int] = Counter()
        for row in self.image[PARTITIONS]:
            carried[row.leader_id & 0xFFFF] += self.rates.get(row.partition, (0, 0))[0]
        return dict(carried)

    def is_even(self, brokers: int, percent: float = 25) -> bool:
        carried = self.carried()
        mean = sum(carried.values()) / brokers
        return len(carried) == brokers and all(
            abs(each - mean) <= mean * percent / 100 for each in carried.values()
        )

    def gauges(self, name: str) -> dict[tuple[str, ...], float]:
        """The maximum over the controllers, as a monitoring system computes it."""
        found: dict[tuple[str, ...], float] = {}
        for process in self.world.controllers.values():
            if process.runtime is not None:
                for labels, value in process.runtime.telemetry.gauges(name):
                    found[labels] = max(found.get(labels, 0.0), value)
        return found

    def now_s(self) -> float:
        clients = self.brokers[0].clients
        assert clients is not None
        return clients.runtime.clock.monotonic_ns() / 1e9

    def _watch(self, _: object) -> None:
        for move in self.brokers[0].image[MOVES]:
            begun = (move.partition, move.source_id & 0xFFFF, move.target_id & 0xFFFF)
            if move.cause is MoveCause.BALANCE and (not self.began or begun not in self.began[-64:]):
                self.began.append(begun)


def tell(
    story: Callable[[LoadedWorld], Coroutine[Any, Any, None]],
    *,
    seed: int = 1,
    brokers: int = 3,
    settings: ControllerSettings = SETTINGS,
) -> None:
    world = LoadedWorld(seed, brokers, settings)
    world.world.simulation.run(story(world))


def test_one_broker_to_three_under_load_and_back_to_one() -> None:
    async def story(world: LoadedWorld) -> None:
        await world.begin_with(1, partitions=30)
        world.rates = dict.fromkeys(range(30), (1 * MB, 2 * MB))
        await asyncio.sleep(10)
        assert not world.began
        await world.join(1)
        await world.until(lambda: world.is_even(2), timeout_s=15)
        await world.join(2)
        joined_s = world.now_s()
        await world.until(lambda: world.is_even(3), timeout_s=30)
        assert world.now_s() - joined_s < 10
        moves = len(world.began)
        await asyncio.sleep(120)
        assert world.is_even(3)
        assert len(world.began) == moves, "it rests"
        assert max(Counter(partition for partition, _, _ in world.began).values()) <= 2
        assert all(source == 0 or target == 2 for _, source, target in world.began), "no partition moved back"

        for number in (2, 1):
            leaver = world.brokers[number]
            await world.brokers[0].do(set_drain=wire.SetDrain(node_id=leaver.node_id, draining=True))
            await world.until(lambda number=number: number not in world.carried())
            await asyncio.sleep(10)
            assert number not in world.carried(), "a draining broker gets nothing"
            await leaver.do(leave_cluster=wire.LeaveCluster())
            world.processes[number].crash()
            await world.until(lambda number=number: world.is_even(number), timeout_s=30)

    tell(story)


def test_unequal_partitions_are_balanced_and_every_move_is_explained() -> None:
    async def story(world: LoadedWorld) -> None:
        await world.begin_with(1, partitions=60)
        world.rates = {0: (5 * MB, 4 * MB), 1: (4 * MB, 5 * MB), 2: (3 * MB, 6 * MB)} | dict.fromkeys(
            range(3, 20), (400000, 800000)
        )
        await asyncio.sleep(5)
        await world.join(1)
        await world.join(2)
        await world.until(lambda: world.is_even(3), timeout_s=30)
        await asyncio.sleep(60)
        description = await world.explain()
        assert world.is_even(3)
        assert len(description.recent) <= 60
        assert [each.node_id & 0xFFFF for each in description.brokers] == [0, 1, 2]
        assert sum(each.partitions for each in description.brokers) == 60
        assert max(each.partitions for each in description.brokers) <= 24, "idle ones too"
        assert all(0 <= each.reported_ms_ago < 2_000 for each in description.brokers)
        assert {each.goal for each in description.recent} >= {"traffic-in", "partitions"}
        first = description.recent[-1]
        assert first.topic == "orders"
        assert first.reason.startswith(f"{first.goal}: broker {first.source_id} has ")
        assert first.begun_at_ms > 0

    tell(story, seed=2)


def test_a_paused_balancer_explains_its_plan_and_executes_it_when_resumed() -> None:
    async def story(world: LoadedWorld) -> None:
        await world.begin_with(1, partitions=12)
        world.rates = dict.fromkeys(range(12), (1 * MB, 1 * MB))
        await asyncio.sleep(6)
        await world.pause(True)
        await world.join(1)
        await asyncio.sleep(30)
        assert not world.began
        description = await world.explain()
        assert description.paused
        assert len(description.proposed) == 6
        assert "the balancer is paused" in description.holding_back
        assert not description.recent
        await world.pause(False)
        await world.until(lambda: world.is_even(2), timeout_s=10)

    tell(story, seed=3)


def test_a_new_leader_waits_for_reports_and_then_continues() -> None:
    async def story(world: LoadedWorld) -> None:
        await world.begin_with(1, partitions=12)
        world.rates = dict.fromkeys(range(12), (1 * MB, 1 * MB))
        await asyncio.sleep(6)
        await world.pause(True)
        await world.join(1)
        assert f"broker {world.brokers[1].node_id} is still starting" in (await world.explain()).holding_back
        await asyncio.sleep(3)
        await world.crash_leader()
        await world.pause(False)
        await asyncio.sleep(2)
        description = await world.explain()
        assert not description.proposed
        assert not world.began
        assert "this controller became leader recently" in description.holding_back
        await world.until(lambda: world.is_even(2), timeout_s=20)
        await asyncio.sleep(60)
        assert world.gauges("ponor_brokers_wanted") == {(): 2.0}, "an election stops no broker"

    tell(story, seed=4)


def test_without_load_nothing_is_written_and_no_broker_is_added() -> None:
    async def story(world: LoadedWorld) -> None:
        await world.begin_with(3, partitions=9)
        await asyncio.sleep(10)
        index = world.image.index
        await asyncio.sleep(100)
        assert world.image.index == index
        assert world.gauges("ponor_brokers_wanted") == {(): 1.0}
        description = await world.explain()
        assert not description.holding_back
        assert description.brokers_wanted == 1
        assert [each.reported_ms_ago for each in description.brokers] == [-1, -1, -1]

    tell(story, seed=5, settings=SOON)


def test_autoscalers_see_a_load_between_zero_and_one_and_the_number_of_brokers() -> None:
    async def story(world: LoadedWorld) -> None:
        await world.begin_with(2, partitions=8)
        world.rates = dict.fromkeys(range(8), (25 * MB, 0))  # 200 MB/s of 105 for each broker
        await asyncio.sleep(30)
        loads = world.gauges("ponor_broker_load")
        assert {int(label) & 0xFFFF for (label,) in loads} == {0, 1}
        assert all(0.8 < load <= 1.0 for load in loads.values())
        assert world.gauges("ponor_brokers_wanted") == {(): 3.0}
        world.rates = {}
        await asyncio.sleep(40)
        assert max(world.gauges("ponor_broker_load").values()) < 0.1
        assert world.gauges("ponor_brokers_wanted") == {(): 3.0}, "a pause stops no broker"
        await asyncio.sleep(40)
        assert world.gauges("ponor_brokers_wanted") == {(): 1.0}

    tell(story, seed=6, brokers=2, settings=SOON)


def test_a_broker_without_load_reports_stops_the_balancer_and_is_named() -> None:
    async def story(world: LoadedWorld) -> None:
        await world.begin_with(1, partitions=12)
        world.rates = dict.fromkeys(range(12), (1 * MB, 1 * MB))
        await asyncio.sleep(6)
        clients = world.brokers[0].clients
        assert clients is not None
        clients.session.report_load = lambda report: None  # type: ignore[method-assign]
        await asyncio.sleep(20)
        await world.join(1)
        await asyncio.sleep(10)
        assert not world.began
        description = await world.explain()
        assert (
            f"broker {world.brokers[0].node_id} had traffic and has sent no load report"
            in description.holding_back
        )

    tell(story, seed=7)
