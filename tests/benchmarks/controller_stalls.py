"""Stalls of a controller's event loop under load and during snapshots, and the duration of a
restart with a large image.

Run it: `python -m tests.benchmarks.controller_stalls [--rows N] [--seconds N]`. Three controller
processes run on a real disk, and the delays of their own ticks are measured: a stall appears with
at least its length minus one tick. The controllers report which part of a delay was their own step,
waiting for a CPU, or another cause; the promise covers the first. A process that only ticks runs
next to them. Prints results without asserting them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeAlias

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.telemetry_names import LATENESS_US, PER_SECOND_US

from tests.benchmarks.bare_ticks import CAUSE_METRIC, LATE_METRIC, BareTicks
from tests.e2e.load.cluster import LocalCluster

NODE: Final = compose_node_id(ClusterOrdinal(1), 1999)
CONTROLLERS: Final = 3
KEYS_PER_OPERATION: Final = 1_000
VALUE: Final = b"v" * 32
RATE_PER_S: Final = 2_000
SNAPSHOT_EVERY_S: Final = 20.0
PROMISED_US: Final = 50_000
LATER_US: Final = 51_200
"""The bucket boundary nearest to it."""
CAUSES: Final = {
    "ran": "own step",
    "waited": "waited for a processor",
    "blocked": "blocked (the kernel, another thread in the interpreter, the host)",
}

ByCause: TypeAlias = dict[str, dict[int, int]]
"""For each cause and bound (us): ticks that the cause delayed by more than the bound."""


class Filling:
    """A session that fills the image, then keeps the controllers busy."""

    def __init__(self, session: SessionClient) -> None:
        self._session = session

    async def fill(self, rows: int) -> None:
        """Put this many keys, a thousand per operation."""
        for first in range(0, rows, KEYS_PER_OPERATION):
            puts = [
                wire.PutKey(key=f"row/{number:012d}", value=VALUE)
                for number in range(first, first + KEYS_PER_OPERATION)
            ]
            await self._session.submit(wire.Operation(put_keys=wire.PutKeys(puts=puts)))

    async def work(self, seconds: float, cluster: LocalCluster) -> int:
        """Submit operations at a steady rate with occasional snapshots; return the number of operations."""
        began = time.monotonic()
        done = snapshots = 0
        while (passed := time.monotonic() - began) < seconds:
            if passed >= (snapshots + 1) * SNAPSHOT_EVERY_S:
                snapshots += 1
                await asyncio.to_thread(cluster.run, "cluster", "quorum", "snapshot")
            due = int(passed * RATE_PER_S) - done
            await asyncio.gather(*(self._put(done + number) for number in range(min(due, 512))))
            done += min(due, 512)
            await asyncio.sleep(0.005)
        return done

    async def _put(self, number: int) -> None:
        operation = wire.Operation(put_key=wire.PutKey(key=f"work/{number}", value=VALUE))
        await self._session.submit(operation)


def late_ticks(cluster: LocalCluster) -> list[ByCause]:
    """Current counts of each controller."""
    return [
        {
            cause: cluster.above(
                "controller", CAUSE_METRIC, LATENESS_US, number, {"cause": cause}, per_unit=PER_SECOND_US
            )
            for cause in CAUSES
        }
        for number in range(CONTROLLERS)
    ]


def since(before: ByCause, after: ByCause) -> ByCause:
    """The counts between two samples."""
    return {
        cause: {bound: count - before[cause][bound] for bound, count in counts.items()}
        for cause, counts in after.items()
    }


def print_ticks(name: str, found: ByCause) -> None:
    """Late ticks by cause and bound."""
    for cause, words in CAUSES.items():
        shown = ", ".join(f"> {bound / 1000:g} ms: {count}" for bound, count in found[cause].items() if count)
        print(f"{name}: {words}: {shown or 'never more than 12.8 ms'}")


def later_in_all(cluster: LocalCluster) -> int:
    """Ticks of all controllers so far that were more than `LATER_US` late, for any cause."""
    return sum(
        cluster.above("controller", LATE_METRIC, [LATER_US], number, per_unit=PER_SECOND_US)[LATER_US]
        for number in range(CONTROLLERS)
    )


def stalls(cluster: LocalCluster) -> list[list[str]]:
    """Log lines of each controller about stalls; at most one in five seconds."""
    logs = [cluster.log("controller", number).splitlines() for number in range(CONTROLLERS)]
    return [[line for line in log if "event loop stalled" in line] for log in logs]


@dataclass(frozen=True)
class Look:
    """Metrics of the controllers at one time; each list has one entry per controller."""

    ticks: list[ByCause]
    later: int
    said: list[list[str]]
    restarts: list[int]

    @classmethod
    def at(cls, cluster: LocalCluster) -> Self:
        """Sample the metrics."""
        restarts = [int(cluster.process("controller", number)["restarts"]) for number in range(CONTROLLERS)]
        return cls(late_ticks(cluster), later_in_all(cluster), stalls(cluster), restarts)


def print_between(before: Look, after: Look) -> None:
    """Print the table, the promise, and the log lines."""
    work = [since(*looks) for looks in zip(before.ticks, after.ticks, strict=True)]
    for number, found in enumerate(work):
        if after.restarts[number] != before.restarts[number]:
            print(f"controller {number} was started anew meanwhile: its counts are worth nothing")
        print_ticks(f"controller {number}", found)
    own, waited = (sum(found[cause][PROMISED_US] for found in work) for cause in ("ran", "waited"))
    bound_ms = PROMISED_US / 1000
    print(f"own steps above {bound_ms:g} ms (promised: none): {own}")
    print(f"ticks that waited more than {bound_ms:g} ms for a processor: {waited}")
    print(f"later than {LATER_US / 1000:g} ms for whatever cause: {after.later - before.later}")
    for number, lines in enumerate(after.said):
        for line in lines[len(before.said[number]) :]:
            print(f"  controller {number}: {line}")


async def run(cluster: LocalCluster, rows: int, seconds: float) -> None:
    """Fill, work, print."""
    network = GrpcNetwork()
    session = SessionClient(
        network=network,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        telemetry=Telemetry(),
        identity=NodeIdentity(NODE, NodeRole.GC, os.urandom(16)),
        addresses=cluster.describe()["controllers"],
    )
    running = asyncio.create_task(session.run())
    await session.ready()
    filling = Filling(session)
    await filling.fill(rows)
    before, bare = Look.at(cluster), BareTicks()
    done = await filling.work(seconds, cluster)
    after = Look.at(cluster)
    print_ticks("a process that only ticks", bare.end())
    print(
        f"{done:,} operations in {seconds:g} s over an image of {rows:,} rows, a snapshot every"
        f" {SNAPSHOT_EVERY_S:g} s"
    )
    print_between(before, after)
    await session.close()
    await running
    await network.close()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.controller_stalls")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ponor-bench-") as directory:
        cluster = LocalCluster(
            Path(directory), arguments=["--controllers", "3", "--gcs", "0", "--cluster-ordinal", "1"]
        )
        with cluster:
            asyncio.run(run(cluster, options.rows, options.seconds))
            for number in range(CONTROLLERS):
                before = cluster.process("controller", number)["restarts"]
                began = time.monotonic()
                cluster.kill("controller", number)
                cluster.wait_serving("controller", number, after_restarts=before + 1)
                print(f"controller {number}: killed and serving again after {time.monotonic() - began:.2f} s")


if __name__ == "__main__":
    main()
