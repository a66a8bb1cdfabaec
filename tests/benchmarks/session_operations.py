"""Operations per second of one session with a real controller process, real disk, and gRPC over loopback.

Run it: `python -m tests.benchmarks.session_operations [--operations N] [--in-flight N]`. Prints a
table without asserting it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

ORDINAL = ClusterOrdinal(1)


def _operations() -> dict[str, Callable[[int], wire.Operation]]:
    return {
        "put_key": lambda n: wire.Operation(put_key=wire.PutKey(key=f"key/{n}", value=b"v" * 8)),
        "prepare_objects": lambda _: wire.Operation(
            prepare_objects=wire.PrepareObjects(count=1, ttl_ms=3_600_000)
        ),
        "create_streams": lambda n: wire.Operation(
            create_streams=wire.CreateStreams(
                streams=[wire.StreamTags(tags={"kind": f"{n:032x}", "number": "0"})]
            )
        ),
        "refused (no such stream)": lambda n: wire.Operation(
            open_streams=wire.OpenStreams(streams=[wire.OpenStream(stream_id=1, stream_epoch=n + 1)])
        ),
    }


async def _measure(
    session: SessionClient, make: Callable[[int], wire.Operation], count: int, in_flight: int
) -> list[float]:
    """Submit `count` operations, `in_flight` at a time; return their latencies in seconds."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            began = loop.time()
            await asyncio.gather(session.submit(make(number)), return_exceptions=True)
            latencies.append(loop.time() - began)

    await asyncio.gather(*(work() for _ in range(in_flight)))
    return sorted(latencies)


async def _run(address: str, pid: int, count: int, in_flight: int) -> None:
    network, loop = GrpcNetwork(), asyncio.get_running_loop()
    session = SessionClient(
        network=network,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        telemetry=Telemetry(),
        identity=NodeIdentity(
            compose_node_id(ORDINAL, 0),
            NodeRole.BROKER,
            os.urandom(16),
            kafka_host="localhost",
            kafka_port=9092,
        ),
        addresses=[address],
    )
    running = loop.create_task(session.run())
    await session.ready()
    controller = psutil.Process(pid)
    print(f"{'operation':26} {'ops/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'controller CPU us/op':>22}")
    for name, make in _operations().items():
        cpu, began = sum(controller.cpu_times()[:2]), loop.time()
        latencies = await _measure(session, make, count, in_flight)
        seconds, used = loop.time() - began, sum(controller.cpu_times()[:2]) - cpu
        p50, p99 = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
        print(
            f"{name:26} {count / seconds:8.0f} {p50 * 1e3:8.2f} {p99 * 1e3:8.2f} {used / count * 1e6:22.0f}"
        )
    await session.close()
    await running
    await network.close()


def main() -> None:
    """Start a controller, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=512)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        config, ready = root / "config.json", root / "ready.json"
        config.write_text(
            json.dumps(
                {
                    "data": str(root / "data"),
                    "listen": "127.0.0.1:0",
                    "cluster_ordinal": ORDINAL,
                    "format": True,
                    "ready_file": str(ready),
                }
            )
        )
        with subprocess.Popen([sys.executable, "-m", "ponor_controller", "--config", str(config)]) as process:
            try:
                asyncio.run(_when_ready(process, ready, arguments.operations, arguments.in_flight))
            finally:
                process.terminate()


async def _when_ready(process: subprocess.Popen[bytes], ready: Path, count: int, in_flight: int) -> None:
    while not ready.exists():
        if process.poll() is not None:
            raise SystemExit("the controller did not start")
        await asyncio.sleep(0.02)
    address = json.loads(ready.read_text())["addresses"]["session"]
    await _run(address, process.pid, count, in_flight)


if __name__ == "__main__":
    main()
