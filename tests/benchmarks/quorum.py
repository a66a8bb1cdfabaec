"""`make bench-quorum`: three controllers and a real etcd of three members, alternating in one run
on the same disk.

One operation at a time: etcd's put through one channel, ours through one session (`PutKey`, durable
on a majority in both). Batched: as many operations as one session allows in flight, as nodes do;
etcd's puts with the same number in flight show the scale but are not equivalent (etcd could batch
in transactions). Both clients run on the event loop of our services, uvloop.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

from tests.benchmarks.report import Report
from tests.e2e.load.cluster import LocalCluster
from tests.peers.etcd_peer import EtcdClient, etcd_cluster, etcd_is_there

NODE: Final = compose_node_id(ClusterOrdinal(1), 1999)
VALUE: Final = b"v" * 128
IN_FLIGHT: Final = 1024
RATE_PROMISE: Final = 20_000
LATENCY_PROMISE: Final = 2.0

Put = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement. Latencies in milliseconds."""

    per_s: float
    p50_ms: float
    p99_ms: float


async def measure(put: Put, first: int, in_flight: int, seconds: float) -> Figures:
    """Put distinct keys from `first` on for some seconds, `in_flight` at a time."""
    latencies: list[float] = []
    began = time.perf_counter()
    number = first

    async def work() -> None:
        nonlocal number
        while (start := time.perf_counter()) - began < seconds:
            mine = number
            number += 1
            await put(mine)
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*(work() for _ in range(in_flight)))
    took = time.perf_counter() - began
    latencies.sort()
    return Figures(
        len(latencies) / took,
        latencies[len(latencies) // 2] * 1e3,
        latencies[len(latencies) * 99 // 100] * 1e3,
    )


class Turns:
    """Measures systems alternately, so that variations of the machine affect all of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0
        self.results: dict[str, list[Figures]] = {}

    async def take(self, name: str, put: Put, in_flight: int) -> None:
        """One round of one case."""
        figures = await measure(put, self._next, in_flight, self._seconds)
        self._next += 10_000_000
        self.results.setdefault(name, []).append(figures)

    def median(self, name: str, figure: str) -> float:
        """The rounds of a case."""
        return float(statistics.median(getattr(row, figure) for row in self.results[name]))


async def run(controllers: list[str], etcd: str | None, rounds: int, seconds: float) -> Turns:
    """Run all rounds."""
    network = GrpcNetwork()
    identity = NodeIdentity(NODE, NodeRole.GC, os.urandom(16))
    session = SessionClient(
        network=network,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        telemetry=Telemetry(),
        identity=identity,
        addresses=controllers,
    )
    running = asyncio.create_task(session.run())
    await session.ready()
    client = EtcdClient(etcd) if etcd else None

    async def ours(number: int) -> None:
        await session.submit(wire.Operation(put_key=wire.PutKey(key=f"bench/{number}", value=VALUE)))

    async def theirs(number: int) -> None:
        assert client is not None
        await client.put(b"bench/%d" % number, VALUE)

    turns = Turns(seconds)
    await measure(ours, 1 << 60, 64, seconds)
    for number in range(rounds):
        sys.stderr.write(f"round {number + 1} of {rounds}\n")
        await turns.take("ponor, one at a time", ours, 1)
        if client is not None:
            await turns.take("etcd, one at a time", theirs, 1)
        await turns.take(f"ponor, {IN_FLIGHT} in flight in one session", ours, IN_FLIGHT)
        if client is not None:
            await turns.take(f"etcd, {IN_FLIGHT} puts in flight", theirs, IN_FLIGHT)
    if client is not None:
        await client.close()
    await session.close()
    await running
    await network.close()
    return turns


def print_figures(turns: Turns) -> None:
    """Print a table and the promises."""
    print(f"{'':44} {'op/s':>10} {'p50 ms':>8} {'p99 ms':>8}")
    for name in turns.results:
        row = [turns.median(name, figure) for figure in ("per_s", "p50_ms", "p99_ms")]
        print(f"{name:44} {row[0]:10,.0f} {row[1]:8.2f} {row[2]:8.2f}")
    rate = turns.median(f"ponor, {IN_FLIGHT} in flight in one session", "per_s")
    print(f"promise: >= {RATE_PROMISE:,} operations/s in one session: {_kept(rate >= RATE_PROMISE)}")
    if "etcd, one at a time" in turns.results:
        ratio = turns.median("ponor, one at a time", "p50_ms") / turns.median("etcd, one at a time", "p50_ms")
        print(
            f"promise: p50 of one operation <= {LATENCY_PROMISE:g}x etcd's: {ratio:.2f}x,"
            f" {_kept(ratio <= LATENCY_PROMISE)}"
        )


def _kept(holds: bool) -> str:
    return "kept" if holds else "NOT KEPT"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="make bench-quorum")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ponor-bench-") as directory:
        root = Path(directory)
        with LocalCluster(
            root / "ponor", arguments=["--controllers", "3", "--gcs", "0", "--cluster-ordinal", "1"]
        ) as cluster:
            controllers = cluster.describe()["controllers"]
            if etcd_is_there():
                with etcd_cluster(root / "etcd") as etcd:
                    turns = uvloop.run(run(controllers, etcd, options.rounds, options.seconds))
            else:
                print("etcd is not on this machine (Debian: etcd-server); its columns are skipped")
                turns = uvloop.run(run(controllers, None, options.rounds, options.seconds))
    print_figures(turns)
    rows = {name: [asdict(row) for row in figures] for name, figures in turns.results.items()}
    print(f"kept as {Report(extras={'quorum': rows}).keep(Path('build/bench'))}")


if __name__ == "__main__":
    main()
