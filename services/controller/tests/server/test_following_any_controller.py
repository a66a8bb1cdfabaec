"""Following a cluster through whatever happens to its controllers: the image at an index is the history's,
indices rise, none is left out.

Eight of the seventeen entries of etcd's table of robustness bugs were in its watch: time travel after a
switch of servers (etcd-io/etcd #15271), events lost to slowness (#17529) and to compaction (#18089, #19179),
progress that was ahead of the events (#15220), revisions of the future (#20221). Each has its place below.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.client.errors import MetadataLagError
from ponor_metadata.client.subscription import SubscriptionClient, SubscriptionSettings
from ponor_metadata.image import snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation

from services.controller.tests.followed_cluster import SETTINGS, FollowedController, History

SEEDS = range(int(os.environ.get("PONOR_SEEDS", "6")))
STEPS = 60
NAMES = ("one", "two", "three")
CLIENT = SubscriptionSettings(silence_ms_max=1_000, stale_ms_max=600)


@dataclass
class Follower:
    """A process that follows the log, and checks every applied index."""

    history: History
    addresses: tuple[str, ...]
    client: SubscriptionClient | None = None
    runtime: Runtime | None = None
    shown: list[int] = field(default_factory=list)
    snapshots: int = 0
    reads: int = 0

    async def run(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.shown = [0]
        client = self.client = SubscriptionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            addresses=self.addresses,
            settings=CLIENT,
        )
        client.listeners.append(lambda batch: self._show(client.image, batch.index, self.shown[-1] + 1))
        client.image_listeners.append(self._show_image)
        following = asyncio.create_task(client.run())
        reading = asyncio.create_task(self._read(client, runtime))
        await asyncio.gather(following, reading)

    def _show(self, image: MetadataImage, index: int, expected: int) -> None:
        assert image.index == index == expected, f"index {index} after {self.shown[-1]}"
        self.shown.append(index)
        self.check_currency()

    def _show_image(self, image: MetadataImage) -> None:
        assert image.index >= self.shown[-1], f"a snapshot at {image.index} after index {self.shown[-1]}"
        assert image.digest == self.history.digests[image.index]
        self.snapshots += 1
        self.shown.append(image.index)

    async def _read(self, client: SubscriptionClient, runtime: Runtime) -> None:
        """Make linearizable reads continuously."""
        while True:
            before = self.history.index
            try:
                await client.wait_current(deadline_ms=2_000)
            except MetadataLagError:
                continue
            assert client.image.index >= before, "a linearizable read of old data"
            self.reads += 1
            await runtime.clock.sleep(runtime.randomness.uniform(0, 0.3))

    def check_currency(self) -> None:
        """Check that everything older than the reported staleness is visible."""
        client = self.client
        if client is None or client.staleness_ms is None:
            return
        moment = asyncio.get_running_loop().time() - client.staleness_ms / 1000 - 0.001
        # A follower that hears the leader receives a commit one beat (20 ms) later.
        assert client.image.index >= self.history.index_at(moment - 0.021)
        assert client.image.index <= self.history.index, "an index beyond the history"


class Cluster:
    """Three controllers, a follower, and their faults."""

    def __init__(self, seed: int) -> None:
        self.simulation = simulation = Simulation(seed)
        self.chance = simulation.chance
        self.history = History(simulation.loop.time)
        self.controllers = {name: FollowedController(f"{name}:9000", self.history) for name in NAMES}
        self.controllers["one"].leads = True
        self.processes = {
            name: simulation.process(name, controller.run) for name, controller in self.controllers.items()
        }
        self.follower = Follower(self.history, tuple(each.address for each in self.controllers.values()))
        self.node = simulation.process("node", self.follower.run)

    def start(self) -> None:
        for process in (*self.processes.values(), self.node):
            process.start()

    def image(self) -> MetadataImage:
        assert self.follower.client is not None
        return self.follower.client.image

    async def caught_up(self) -> None:
        await wait_until(lambda: self.image().index == self.history.index)
        assert self.image().digest == self.history.digests[self.history.index]
        assert snapshot.encode(self.image()) == snapshot.encode(self.history.image)

    def restart(self, name: str, *, begin: int, known: int) -> None:
        """Kill a controller; it restarts with a log that begins at `begin` and a commit index of `known`."""
        controller, process = self.controllers[name], self.processes[name]
        if process.running:
            process.crash()
        controller.begin_index, controller.restart_index = begin, known
        process.start()

    def restart_anyhow(self) -> None:
        name = self.chance.choice(NAMES)
        begin = self.chance.randint(self.controllers[name].begin_index, self.history.index)
        self.restart(name, begin=begin, known=self.chance.randint(begin, self.history.index))

    def elect(self) -> None:
        chosen = self.chance.choice(NAMES)
        for name, controller in self.controllers.items():
            controller.leads = name == chosen

    def toggle_hearing(self) -> None:
        controller = self.controllers[self.chance.choice(NAMES)]
        controller.hears = not controller.hears

    def pause_or_resume(self, process: SimProcess) -> None:
        if process.running:
            (process.resume if process.paused else process.pause)()

    def heal(self) -> None:
        self.simulation.network.heal()
        for controller in self.controllers.values():
            controller.hears = True
        for process in (*self.processes.values(), self.node):
            if not process.running:
                process.start()
            elif process.paused:
                process.resume()

    def happen(self) -> None:
        """Inject a random fault."""
        network, name = self.simulation.network, self.chance.choice(NAMES)
        match self.chance.randrange(10):
            case 0:
                network.reset_connections("node", name)
            case 1:
                network.cut(name, "node")
            case 2:
                network.cut("node", name)
            case 3:
                network.abandon_connections(*self.chance.sample(("node", name), 2))
            case 4:
                self.restart_anyhow()
            case 5:
                self.elect()
            case 6:
                self.toggle_hearing()
            case 7:
                self.pause_or_resume(self.processes[name])
            case 8:
                self.pause_or_resume(self.node)
            case _:
                self.heal()


async def _a_long_day(cluster: Cluster) -> None:
    cluster.start()
    for _ in range(STEPS):
        for _ in range(cluster.chance.choice((0, 1, 3, 60, 300))):
            cluster.history.put(cluster.chance)
        cluster.happen()
        for _ in range(cluster.chance.randint(1, 10)):
            await asyncio.sleep(cluster.chance.uniform(0, 0.1))
            cluster.history.put(cluster.chance)
            if not cluster.node.paused:
                cluster.follower.check_currency()
        for process in (*cluster.processes.values(), cluster.node):
            assert process.failure is None, process.failure
    cluster.heal()
    await cluster.caught_up()
    reads = cluster.follower.reads
    await wait_until(lambda: cluster.follower.reads > reads)
    assert cluster.node.failure is None, cluster.node.failure
    await wait_until(lambda: (cluster.follower.client.staleness_ms or 9_999) < 1_000)  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_image_equals_the_history_under_any_faults(seed: int) -> None:
    cluster = Cluster(seed)
    cluster.simulation.run(_a_long_day(cluster))


def _story() -> Iterator[Cluster]:
    cluster = Cluster(7)
    cluster.start()
    yield cluster


def _put(cluster: Cluster, count: int = 1) -> None:
    for _ in range(count):
        cluster.history.put(cluster.chance)


def _leave_only(cluster: Cluster, name: str) -> None:
    """The follower can reach only one controller, and loses its connections to the others."""
    cluster.simulation.network.heal()
    for other in NAMES:
        if other != name:
            cluster.simulation.network.cut("node", other)
            cluster.simulation.network.reset_connections("node", other)


def test_after_a_switch_to_a_lagging_controller_reads_wait_for_it() -> None:
    """etcd-io/etcd #15271: after a switch, a watch showed older revisions than it had shown before."""
    (cluster,) = _story()

    async def story() -> None:
        _leave_only(cluster, "one")
        await cluster.caught_up()
        cluster.controllers["two"].hears = False
        await asyncio.sleep(0.1)
        _put(cluster, 20)
        await cluster.caught_up()
        seen = cluster.history.index
        _leave_only(cluster, "two")
        await asyncio.sleep(0.3)
        two = cluster.controllers["two"].tail
        assert two is not None
        assert two.last_index < seen
        assert cluster.image().index == seen
        assert cluster.follower.shown == sorted(cluster.follower.shown)
        cluster.controllers["two"].hears = True
        _put(cluster)
        await cluster.caught_up()
        assert cluster.follower.snapshots == 1, "resumed, not started over"

    cluster.simulation.run(story())


def test_a_controller_that_never_catches_up_is_left_for_another() -> None:
    (cluster,) = _story()

    async def story() -> None:
        _leave_only(cluster, "one")
        await cluster.caught_up()
        cluster.controllers["two"].hears = False
        await asyncio.sleep(0.1)
        _put(cluster, 20)
        await cluster.caught_up()
        cluster.simulation.network.heal()
        cluster.processes["one"].crash()
        cluster.controllers["three"].leads = True
        _put(cluster)
        await cluster.caught_up()

    cluster.simulation.run(story())


def test_a_compacted_log_causes_a_snapshot_and_loses_no_batch() -> None:
    """etcd-io/etcd #18089, #19179: events were dropped when compaction met a slow watcher."""
    (cluster,) = _story()

    async def story() -> None:
        _leave_only(cluster, "one")
        await cluster.caught_up()
        cluster.simulation.network.cut("node", "one")
        cluster.simulation.network.cut("one", "node")
        _put(cluster, SETTINGS.retained_batches_max + 50)
        await asyncio.sleep(0.1)
        cluster.simulation.network.heal()
        cluster.simulation.network.reset_connections("node", "one")
        await cluster.caught_up()
        assert cluster.follower.snapshots == 2
        _put(cluster, 5)
        await cluster.caught_up()
        assert cluster.follower.shown[-5:] == list(
            range(cluster.history.index - 4, cluster.history.index + 1)
        )

    cluster.simulation.run(story())


def test_a_paused_follower_is_disconnected_or_resumes_without_gaps() -> None:
    """etcd-io/etcd #17529: a starved watcher lost events."""
    (cluster,) = _story()

    async def story() -> None:
        await cluster.caught_up()
        for _ in range(5):
            cluster.node.pause()
            _put(cluster, cluster.chance.choice((30, 300, 3_000)))
            await asyncio.sleep(cluster.chance.choice((0.5, 4.0)))
            cluster.node.resume()
            await cluster.caught_up()

    cluster.simulation.run(story())


def test_delayed_frames_do_not_make_a_resumed_process_report_current_data() -> None:
    """etcd-io/etcd #15220: progress was ahead of the events."""
    (cluster,) = _story()

    async def story() -> None:
        await cluster.caught_up()
        client = cluster.follower.client
        assert client is not None
        await wait_until(lambda: client.staleness_ms is not None)
        cluster.node.pause()
        await asyncio.sleep(1.5)
        for name in NAMES:
            cluster.simulation.network.cut("node", name)  # frames in flight arrive; no probe is sent
        cluster.node.resume()
        for _ in range(20):
            await asyncio.sleep(0.02)
            assert client.staleness_ms is not None
            assert client.staleness_ms >= 1_000
        cluster.simulation.network.heal()
        await wait_until(lambda: (client.staleness_ms or 0) < 700)

    cluster.simulation.run(story())


def test_an_isolated_controller_reports_it_and_is_left() -> None:
    (cluster,) = _story()

    async def story() -> None:
        _leave_only(cluster, "two")
        await cluster.caught_up()
        cluster.simulation.network.heal()
        cluster.controllers["two"].hears = False
        _put(cluster, 3)
        await cluster.caught_up()
        client = cluster.follower.client
        assert client is not None
        await wait_until(lambda: (client.staleness_ms or 9_999) < 600)

    cluster.simulation.run(story())


def test_without_a_leader_staleness_grows() -> None:
    (cluster,) = _story()

    async def story() -> None:
        await cluster.caught_up()
        client = cluster.follower.client
        assert client is not None
        await wait_until(lambda: client.staleness_ms is not None)
        for controller in cluster.controllers.values():
            controller.leads = controller.hears = False
        await asyncio.sleep(5)
        assert client.staleness_ms is not None
        assert client.staleness_ms > 4_000
        with pytest.raises(MetadataLagError):
            await client.wait_current(deadline_ms=1_000)
        cluster.controllers["three"].leads = cluster.controllers["three"].hears = True
        _put(cluster)
        await cluster.caught_up()
        await client.wait_current(deadline_ms=5_000)

    cluster.simulation.run(story())


def test_another_history_under_the_same_index_raises_an_alarm_and_a_snapshot() -> None:
    (cluster,) = _story()

    async def story() -> None:
        _leave_only(cluster, "one")
        await cluster.caught_up()
        image = cluster.image()
        image.digest = bytes(reversed(image.digest))  # as if a batch had been applied differently here
        cluster.simulation.network.reset_connections("node", "one")
        await wait_until(lambda: cluster.follower.snapshots == 2)
        await cluster.caught_up()
        runtime = cluster.follower.runtime
        assert runtime is not None
        mismatches = runtime.telemetry.counters("ponor_subscription_digest_mismatches_total")
        assert sum(value for _, value in mismatches) == 1

    cluster.simulation.run(story())


def test_the_digest_is_compared_every_1024_indices() -> None:
    (cluster,) = _story()

    async def story() -> None:
        _put(cluster, 390)
        await cluster.caught_up()
        while cluster.history.index % 1_024 != 1_000:
            _put(cluster)
            if cluster.history.index % 100 == 0:
                await cluster.caught_up()
        await cluster.caught_up()
        _put(cluster, 100)  # one frame would hold them all; it ends at the boundary
        leader = cluster.controllers["one"].tail
        assert leader is not None
        await wait_until(lambda: leader.last_index == cluster.history.index)
        frame = leader.frame_after(cluster.history.index - 100)
        assert frame is not None
        assert frame.last_index % 1_024 == 0
        await cluster.caught_up()

    cluster.simulation.run(story())


def test_batches_share_frames_under_load_and_do_not_wait_otherwise() -> None:
    (cluster,) = _story()

    async def story() -> None:
        await cluster.caught_up()
        for _ in range(20):
            await asyncio.sleep(0.2)
            _put(cluster)
            began = asyncio.get_running_loop().time()
            await wait_until(lambda: cluster.image().index == cluster.history.index, poll_s=0.001)
            assert asyncio.get_running_loop().time() - began < 0.15

    cluster.simulation.run(story())


def test_a_forced_recovery_without_lost_batches_is_followed() -> None:
    (cluster,) = _story()

    async def story() -> None:
        await cluster.caught_up()
        cluster.history.commit(pb.Record(incarnation_raised=pb.IncarnationRaised(incarnation=1)))
        _put(cluster, 3)
        await cluster.caught_up()
        _leave_only(cluster, "three")
        _put(cluster, 3)
        await cluster.caught_up()
        assert cluster.node.failure is None
        assert cluster.follower.snapshots == 1

    cluster.simulation.run(story())
