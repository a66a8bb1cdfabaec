"""A cluster whose machines crash while clients continue, and the checks when it is quiescent again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from ponor_broker.groups.settings import GroupSettings
from ponor_broker.settings import BrokerSettings
from ponor_cluster_simulation.cluster.sim_cluster import CONTROLLER_ADDRESS, ClusterSettings, SimCluster
from ponor_cluster_simulation.workload.admin import Admin
from ponor_cluster_simulation.workload.consumer import Consumer
from ponor_cluster_simulation.workload.history import ClusterHistory
from ponor_cluster_simulation.workload.producer import Producer
from ponor_controller.settings import ControllerSettings
from ponor_gc.settings import GcSettings
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image import snapshot
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_runtime.runtime import Runtime
from ponor_simulation.disk import DiskSpeed
from ponor_simulation.object_store import StoreFaults
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation
from s3stream.objects.keys import object_key
from s3stream.settings import KIB, MIB, StorageSettings
from s3stream.stores.retrying import RetrySettings

TOPIC: Final = "orders"
QUIESCENT_S_MAX: Final = 120.0
"""Virtual time in which the cluster must become quiescent after the last fault."""
STOP_S_MAX: Final = 10.0
"""Virtual time in which a stopped process must end, whatever else is down."""
SETTINGS: Final = ClusterSettings(
    controller=ControllerSettings(
        destroy_delay_ms=1_000,
        log_segment_bytes=16 * KIB,
        batch_bytes_max=64 * KIB,
        snapshot_batches=40,
        retained_batches_max=60,
        session_timeout_ms=2_000,
        progress_interval_ms=500,
    ),
    broker=BrokerSettings(
        segment_bytes=12 * KIB,
        controller_timeout_ms=3_000,
        cold_read_ms_max=4_000,
        shutdown_upload_ms_max=1_500,
        groups=GroupSettings(offsets_topic_partitions=2),
        storage=StorageSettings(
            log_cache_bytes_max=256 * KIB,
            append_waiting_bytes_max=32 * KIB,
            block_cache_bytes_max=256 * KIB,
            upload_size_bytes_max=32 * KIB,
            upload_interval_ms=700,
            split_size_bytes=8 * KIB,
            object_block_bytes_max=4 * KIB,
            small_rest_bytes_max=4 * KIB,
            wal_bytes_max=1 * MIB,
            recovery_chunk_bytes_max=24 * KIB,
            upload_retry_ms_max=200,
            prepared_ttl_ms=8_000,
        ),
    ),
    gc=GcSettings(
        claim_objects_max=10, claim_ttl_ms=2_000, poll_interval_ms_min=200, poll_interval_ms_max=1_000
    ),
    retry=RetrySettings(attempts_max=4, deadline_ms=2_000, backoff_ms_first=5, backoff_ms_max=100),
)


class ClusterWorld:
    """One run of one seed."""

    def __init__(
        self, seed: int, *, store_in_directory: bool = False, settings: ClusterSettings = SETTINGS
    ) -> None:
        self.simulation = Simulation(seed)
        self.chance = self.simulation.chance
        self.cluster = SimCluster(self.simulation, settings, store_in_directory=store_in_directory)
        self.history = ClusterHistory()
        self.partitions = self.chance.randint(1, 4)
        self.producers = [
            Producer(f"producer-{number}", TOPIC, self.partitions, self.history)
            for number in range(self.chance.randint(1, 3))
        ]
        self.consumers = [
            Consumer(f"consumer-{number}", TOPIC, self.partitions, self.history)
            for number in range(self.chance.randint(1, 2))
        ]
        self.observer: SubscriptionClient | None = None
        self.admin = Admin(TOPIC, self.partitions)
        self.crashes = 0

    def run(self) -> None:
        """Run the faults and the checks."""
        with self.cluster.watch.on():
            self.simulation.run(self._scenario())

    async def start(self) -> None:
        """Start everything; return after the first acknowledgement."""
        self._start_all()
        await self._wait("a record is acknowledged", lambda: bool(self.history.acknowledged))

    async def judge(self) -> None:
        """End all faults, wait for quiescence, check; then check again after a power failure."""
        await self._calm_down()
        await self._check_log("reader")
        await self._check_images()
        await self._check_store()
        self._crash(*self.cluster.processes)
        self.cluster.start_all()
        await self._check_log("reader-after-restart")
        self._check_alive()

    async def _scenario(self) -> None:
        self._start_all()
        if self.chance.random() < 0.8:
            await self._wait("a record is acknowledged", lambda: bool(self.history.acknowledged))
        for _ in range(self.chance.randint(5, 11)):
            await asyncio.sleep(self.chance.choice((0.05, 0.5, 2.0)) * self.chance.random())
            await self._disturb()
            self._check_alive()
        await self.judge()

    def _start_all(self) -> None:
        self.cluster.start_all()
        self._client("observer", self._observe)
        self._client("admin", self.admin.run)
        for producer in self.producers:
            self._client(producer.name, producer.run)
        for consumer in self.consumers:
            self._client(consumer.name, consumer.run)

    # Clients

    def _client(self, name: str, main: Callable[[Runtime], Awaitable[None]]) -> SimProcess:
        process = self.simulation.process(name, main)
        process.start()
        return process

    async def _observe(self, runtime: Runtime) -> None:
        """Follow the metadata, and validate the image after every batch."""
        observer = self.observer = SubscriptionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            addresses=[CONTROLLER_ADDRESS],
        )
        self.cluster.watch.follow(observer)
        observer.listeners.append(lambda batch: None if batch.index % 7 else validate(observer.image))
        observer.image_listeners.append(validate)
        await observer.run()

    # Faults

    async def _disturb(self) -> None:
        names = list(self.cluster.processes)
        match self.chance.randrange(13):
            case 0 | 1:
                await self._crash_and_restart(self.chance.choice(names))
            case 2:
                await self._crash_in_operation(self.chance.choice(("broker", "broker", "controller")))
            case 3:
                await self._crash_and_restart(*names)
            case 4:
                await self._stop_in_order(self.chance.choice(names))
            case 5:
                self.simulation.network.reset_connections("broker", self._other())
            case 6:
                await self._cut("broker", self._other())
            case 7 | 8:
                await self._crash_after_resets()
            case 9 | 10:
                await self._end_in_silence()
            case _:
                self._upset_store()

    def _other(self) -> str:
        producers = [producer.name for producer in self.producers]
        consumers = [consumer.name for consumer in self.consumers]
        return self.chance.choice(["controller", "controller", *producers, *consumers])

    def _crash(self, *names: str) -> None:
        self._check_alive()
        for name in names:
            process = self.cluster.processes[name]
            if process.running:
                self.crashes += 1
                process.crash(power_loss=self.chance.random() < 0.8)

    async def _crash_and_restart(self, *names: str) -> None:
        self._crash(*names)
        for name in names:
            await asyncio.sleep(self.chance.choice((0.0, 0.001, 0.05, 1.0)) * self.chance.random())
            if not self.cluster.processes[name].running:
                self.cluster.start(name)

    async def _crash_in_operation(self, name: str) -> None:
        """Crash during the n-th disk operation from now on."""
        process = self.cluster.processes[name]
        countdown = self.chance.randint(1, 40)

        def count(*_: object) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                self.simulation.loop.call_soon(
                    partial(self._crash, name), context=self.simulation.loop.outside
                )

        process.disk.watch = count
        await asyncio.sleep(1.0)
        process.disk.watch = None
        if not process.running:
            self.cluster.start(name)

    async def _crash_after_resets(self) -> None:
        """Crash while the disk is slow, after clients have reconnected and repeated their requests."""
        disk = self.cluster.processes["broker"].disk
        disk.speed = DiskSpeed(sync_s=(0.05, 0.4))
        await asyncio.sleep(0.2 * self.chance.random())
        for producer in self.producers:
            self.simulation.network.reset_connections("broker", producer.name)
        await asyncio.sleep(0.3 * self.chance.random())
        disk.speed = DiskSpeed()
        await self._crash_and_restart("broker")

    async def _end_in_silence(self) -> None:
        """Drop requests or answers, wait for the upload, and end the broker."""
        disk = self.cluster.processes["broker"].disk
        disk.speed = DiskSpeed(sync_s=(0.02, 0.3))
        await asyncio.sleep(0.5 * self.chance.random())
        is_deaf = self.chance.random() < 0.5
        for producer in self.producers:
            ends = (producer.name, "broker") if is_deaf else ("broker", producer.name)
            self.simulation.network.cut(*ends)
        await asyncio.sleep(2.0 * self.chance.random())
        disk.speed = DiskSpeed()
        if self.chance.random() < 0.5:
            await self._stop_in_order("broker")
        else:
            await self._crash_and_restart("broker")
        self.simulation.network.heal()

    async def _stop_in_order(self, name: str) -> None:
        if name not in self.cluster.serving:
            return
        is_alone = name == "broker" and self.chance.random() < 0.3
        if is_alone:
            self._crash("controller")
        self.cluster.stop(name)
        process = self.cluster.processes[name]
        await self._wait(f"{name} has stopped", lambda: not process.running, s_max=STOP_S_MAX)
        self.cluster.start(name)
        if is_alone and not self.cluster.processes["controller"].running:
            self.cluster.start("controller")

    async def _cut(self, one: str, other: str) -> None:
        for source, target in ((one, other), (other, one)):
            if self.chance.random() < 0.7:
                self.simulation.network.cut(source, target)
        await asyncio.sleep(self.chance.choice((0.3, 3.0)) * self.chance.random())
        self.simulation.network.heal()

    def _upset_store(self) -> None:
        if self.cluster.store is not None:
            self.cluster.store.faults = StoreFaults(
                before=self.chance.choice((0, 0.05, 0.3)),
                after=self.chance.choice((0, 0.05, 0.2)),
                short_read=self.chance.choice((0, 0.02)),
                down=self.chance.random() < 0.15,
            )

    # Quiescence

    def _check_alive(self) -> None:
        self.cluster.check_alive()
        for process in self.simulation.processes.values():
            assert process.failure is None, f"{process.name}: {process.failure!r}"
        if self.cluster.watch.controller is not None:
            self.cluster.watch.saw(self.cluster.watch.controller.image)

    async def _calm_down(self) -> None:
        """End all faults, start everything, and wait until all started requests are finished."""
        if self.cluster.store is not None:
            self.cluster.store.faults = StoreFaults()
        self.simulation.network.heal()
        self.cluster.start_all()
        for producer in self.producers:
            producer.stop = True
        self.admin.stop = True
        await self._wait("the cluster serves", lambda: self.cluster.is_serving)
        for producer in self.producers:
            await self._wait(f"{producer.name} is finished", lambda p=producer: p.is_finished)  # type: ignore[misc]
        for consumer in self.consumers:
            await self._wait(f"{consumer.name} is at the end", lambda c=consumer: c.is_at_end)  # type: ignore[misc]
            consumer.stop = True

    async def _wait(
        self, what: str, condition: Callable[[], bool], *, s_max: float = QUIESCENT_S_MAX
    ) -> None:
        def holds() -> bool:
            self._check_alive()
            return condition()

        try:
            await wait_until(holds, poll_s=0.05, timeout_s=s_max)
        except TimeoutError as error:
            raise AssertionError(f"not within {s_max} s: {what}") from error

    async def _check_log(self, name: str) -> None:
        """Read everything with a new consumer."""
        reader = Consumer(name, TOPIC, self.partitions, self.history)
        self._client(name, reader.run)
        await self._wait(f"{name} has read all", lambda: reader.is_at_end)
        reader.stop = True
        for partition, log in enumerate(reader.logs):
            self.history.check_log(partition, log)

    async def _check_images(self) -> None:
        watch = self.cluster.watch
        assert watch.controller is not None
        assert watch.follower is not None
        assert self.observer is not None
        controller, follower, observer = watch.controller, watch.follower, self.observer
        await self._wait(
            "all images are at one index",
            lambda: controller.image.index == follower.image.index == observer.image.index,
        )
        for image in (follower.image, observer.image):
            assert image.digest == controller.image.digest
            assert snapshot.encode(image) == snapshot.encode(controller.image)
        validate(controller.image)

    async def _check_store(self) -> None:
        """Wait until the store holds exactly the objects of committed rows."""
        assert self.cluster.watch.controller is not None
        image = self.cluster.watch.controller.image
        deadline = self.simulation.loop.time() + QUIESCENT_S_MAX
        while True:
            self._check_alive()
            wanted = {
                object_key(row.namespace, row.object_id)
                for row in image[OBJECTS]
                if row.state is ObjectState.COMMITTED
            }
            found = await self.cluster.keys()
            assert wanted <= found, f"committed and not in the store: {sorted(wanted - found)}"
            if wanted == found:
                return
            assert self.simulation.loop.time() < deadline, f"never deleted: {sorted(found - wanted)}"
            await asyncio.sleep(0.5)
