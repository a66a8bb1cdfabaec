"""A controller and a broker in one thread of the test process, on loopback and real directories.

Real clients, which block, use it from the test's own thread. A stop is clean, so a second start on
the same directory continues with all data. tests/e2e covers killed processes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvloop
from ponor_broker.app import BrokerOptions
from ponor_broker.app import run as run_broker
from ponor_broker.settings import BrokerSettings
from ponor_controller.app import run as run_controller
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.runtime import Runtime
from ponor_runtime.settings import load
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from s3stream.stores.open_store import open_object_store

ORDINAL = ClusterOrdinal(1)
START_S_MAX = 240.0
MIB = 1 << 20
SETTINGS = {
    # Each start fills two segments with zeros; with the default sizes, 128 MiB.
    "wal_bytes_max": str(128 * MIB),
    "group_initial_rebalance_delay_ms": "0",
    "offsets_topic_partitions": "4",
    "transaction_topic_partitions": "4",
    "upload_interval_ms": "500",
    # A stop must be clean even on a slow machine, because tests measure the next start.
    "shutdown_upload_ms_max": "600000",
}


@dataclass
class RunningCluster:
    """The cluster's interface for tests."""

    kafka: str = ""
    controller: str = ""
    telemetry: Telemetry = field(default_factory=Telemetry)
    failures: list[BaseException] = field(default_factory=list)

    @property
    def port(self) -> int:
        """The Kafka port."""
        return int(self.kafka.rpartition(":")[2])


@contextmanager
def running_cluster(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *,
    port: int = 0,
    controller_settings: ControllerSettings | None = None,
) -> Iterator[RunningCluster]:
    """Run a cluster until the block ends."""
    cluster = RunningCluster()
    started = threading.Event()
    loop_ready: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    broker_settings = load(BrokerSettings, {**SETTINGS, **(settings or {})})

    async def serve() -> None:
        stop = asyncio.Event()
        loop_ready.append((asyncio.get_running_loop(), stop))
        controller = replace(controller_settings or ControllerSettings(), log_segment_bytes=4 * MIB)
        await _serve(cluster, directory, (controller, broker_settings), port, stop, started)

    def thread() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:  # passed to the test's thread below
            cluster.failures.append(error)
        finally:
            started.set()

    worker = threading.Thread(target=thread, name="cluster")
    worker.start()
    try:
        assert started.wait(START_S_MAX), "the cluster did not start"
        assert cluster.kafka, f"the cluster did not start: {cluster.failures}"
        yield cluster
    finally:
        if loop_ready:
            loop, stop = loop_ready[0]
            if not loop.is_closed():
                loop.call_soon_threadsafe(stop.set)
        worker.join(START_S_MAX)
    assert not worker.is_alive(), "the cluster did not stop"
    assert not cluster.failures, cluster.failures


async def _serve(
    cluster: RunningCluster,
    directory: Path,
    settings: tuple[ControllerSettings, BrokerSettings],
    port: int,
    stop: asyncio.Event,
    started: threading.Event,
) -> None:
    def fail_stop(what: str, error: BaseException) -> None:
        cluster.failures.append(error)
        stop.set()

    disk = SystemDisk()
    controller_runtime = Runtime(
        SystemClock(), SystemRandomness(), disk, GrpcNetwork(), Telemetry(), fail_stop
    )
    network = GrpcNetwork()
    broker_runtime = Runtime(SystemClock(), SystemRandomness(), disk, network, cluster.telemetry, fail_stop)
    controller_stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()
    controller = asyncio.create_task(
        run_controller(
            controller_runtime,
            settings[0],
            ControllerOptions(directory / "controller", "127.0.0.1:0", ORDINAL, format=True),
            stop=controller_stop,
            ready=lambda addresses: address.set_result(addresses["session"]),
        )
    )
    store_url = f"file://{directory / 'objects'}"
    store = await open_object_store(store_url, runtime=broker_runtime, environment={})

    def ready(addresses: Mapping[str, str]) -> None:
        cluster.kafka = addresses["kafka"]
        started.set()

    try:
        cluster.controller = await address
        options = BrokerOptions(
            compose_node_id(ORDINAL, 0),
            directory / "broker",
            (cluster.controller,),
            kafka_port=port,
            object_store=store_url,
        )
        await run_broker(broker_runtime, settings[1], options, store=store, stop=stop, ready=ready)
    finally:
        await network.close()
        await store.close()
        controller_stop.set()
        await controller
