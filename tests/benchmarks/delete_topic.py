"""`make bench-delete-topic`: a topic with many stream objects is deleted while another session puts
keys, on three real controllers.

Run it: `python -m tests.benchmarks.delete_topic [--objects N] [--seconds N]`. The deletion ends
when a subscriber sees that nothing is left to delete or reclaim. Prints its duration, the latency
of the puts before and during it, and the terms. The latencies depend on the machine and are only
printed; the program fails if the leader changed or if the deletion did not end in time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import uvloop
from ponor.controller.v1 import quorum_service_pb2 as quorum_wire
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_metadata.nouns.streams import RECLAIMS, STREAM_OBJECTS
from ponor_metadata.nouns.topics import DELETIONS, TOPICS
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

from tests.benchmarks.turns.cluster_in_loop import ClusterInLoop
from tests.ports import free_ports

ORDINAL: Final = ClusterOrdinal(1)
CONTROLLERS: Final = 3
FIRST_CONTROLLER: Final = 3_000
PUT_EVERY_S: Final = 0.05
POLL_S: Final = 0.1
BASELINE_S: Final = 5.0
READY_S_MAX: Final = 60.0
PROMISED_P99_MS: Final = 50.0
PROMISED_S: Final = 60.0
"""For 200,000 objects."""


@contextmanager
def controllers(directory: Path) -> Iterator[list[str]]:
    """Start three controllers that format a new cluster; return the addresses of their sessions."""
    first_port = free_ports(2 * CONTROLLERS)
    ports = [f"127.0.0.1:{first_port + number}" for number in range(2 * CONTROLLERS)]
    voters = [
        {
            "node_id": FIRST_CONTROLLER + number,
            "service_address": ports[number],
            "peer_address": ports[CONTROLLERS + number],
        }
        for number in range(CONTROLLERS)
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, voter in enumerate(voters):
            content = {
                "data": str(directory / f"controller-{number}"),
                "listen": voter["service_address"],
                "peer_listen": voter["peer_address"],
                "node_id": voter["node_id"],
                "voters": voters,
                "format": True,
                "cluster_ordinal": ORDINAL,
            }
            config = directory / f"controller-{number}.json"
            config.write_text(json.dumps(content), encoding="utf-8")
            command = [sys.executable, "-m", "ponor_controller", "--config", str(config)]
            with (directory / f"controller-{number}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        yield ports[:CONTROLLERS]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def new_session(network: GrpcNetwork, addresses: Sequence[str], number: int) -> SessionClient:
    """A session of a broker that exists only in this process."""
    identity = NodeIdentity(
        compose_node_id(ORDINAL, number),
        NodeRole.BROKER,
        os.urandom(16),
        kafka_host="localhost",
        kafka_port=9092,
    )
    return SessionClient(
        network=network,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        telemetry=Telemetry(),
        identity=identity,
        addresses=addresses,
    )


@asynccontextmanager
async def clients(network: GrpcNetwork, addresses: Sequence[str]) -> AsyncIterator[ClusterInLoop]:
    """A session and a subscriber."""
    session = new_session(network, addresses, 0)
    subscription = SubscriptionClient(
        network=network,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        telemetry=Telemetry(),
        addresses=addresses,
    )
    running = [asyncio.create_task(session.run()), asyncio.create_task(subscription.run())]
    try:
        async with asyncio.timeout(READY_S_MAX):
            await session.ready()
        yield ClusterInLoop(session, subscription)
    finally:
        await session.close()
        await subscription.close()
        await asyncio.gather(*running)


class Puts:
    """Puts a key every 50 ms through a session of its own and records the latencies, in milliseconds."""

    def __init__(self, session: SessionClient) -> None:
        self._session = session
        self._latencies: list[float] = []

    async def run(self) -> None:
        """Put keys until cancelled, one at a time."""
        number = 0
        while True:
            began = time.monotonic()
            put = wire.PutKey(key=f"bench/{number}", value=b"v")
            await self._session.submit(wire.Operation(put_key=put))
            self._latencies.append((time.monotonic() - began) * 1e3)
            number += 1
            await asyncio.sleep(PUT_EVERY_S)

    def take(self) -> list[float]:
        """The latencies since the last call, in ascending order."""
        taken, self._latencies = sorted(self._latencies), []
        return taken


def describe_latencies(latencies: Sequence[float]) -> str:
    """Count, median, 99th percentile and maximum."""
    if not latencies:
        return "no put was answered"
    p50, p99 = (latencies[len(latencies) * percent // 100] for percent in (50, 99))
    return f"{len(latencies):,} puts, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {latencies[-1]:.1f} ms"


async def delete(cluster: ClusterInLoop, topic: bytes) -> tuple[float, float]:
    """Delete the topic; seconds until the answer and until nothing is left to reclaim."""
    began = time.monotonic()
    await cluster.ask(delete_topic=wire.DeleteTopic(topic_id=topic))
    answered_s = time.monotonic() - began
    image = cluster.subscription.image
    while len(image[TOPICS]) or len(image[DELETIONS]) or len(image[RECLAIMS]):
        await asyncio.sleep(POLL_S)
        image = cluster.subscription.image
    took_s = time.monotonic() - began
    assert len(image[STREAM_OBJECTS]) == 0, "the topic was purged, but objects are left"
    return answered_s, took_s


async def measure(addresses: Sequence[str], objects: int, seconds: float) -> None:
    """Set up, delete, print."""
    network = GrpcNetwork()
    quorum = QuorumClient(network, SystemClock(), addresses)

    async def term() -> int:
        request = quorum_wire.QuorumRequest(describe=quorum_wire.DescribeQuorum(leader_only=True))
        return (await quorum.ask(request, timeout_s=READY_S_MAX)).description.term

    async with clients(network, addresses) as cluster:
        topic = await cluster.create_topic("t")
        (stream_id,) = await cluster.open_streams(1, {"topic": topic.hex(), "partition": "0"})
        began = time.monotonic()
        await cluster.commit_stream_objects(stream_id, objects)
        print(f"{objects:,} objects committed in {time.monotonic() - began:.1f} s", flush=True)
        # Registered after the topic was created, so that the topic's partition is not placed on it.
        other = new_session(network, addresses, 1)
        running = asyncio.create_task(other.run())
        await other.ready()
        puts = Puts(other)
        putting = asyncio.create_task(puts.run())
        await asyncio.sleep(BASELINE_S)
        print(f"before the deletion: {describe_latencies(puts.take())}", flush=True)
        term_before, load_before = await term(), os.getloadavg()[0]
        try:
            async with asyncio.timeout(seconds):
                answered_s, took_s = await delete(cluster, topic)
        except TimeoutError:
            sys.exit(f"NOT deleted within {seconds:g} s; {describe_latencies(puts.take())}")
        latencies = puts.take()
        putting.cancel()
        term_after = await term()
        await other.close()
        await running
    await network.close()
    print(f"load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after the deletion")
    print(f"deletion answered after {answered_s * 1e3:.1f} ms; nothing left to reclaim after {took_s:.1f} s")
    print(f"during the deletion: {describe_latencies(latencies)}")
    p99_ms = latencies[len(latencies) * 99 // 100]
    print(f"promise: p99 of a put <= {PROMISED_P99_MS:g} ms: {_kept(p99_ms <= PROMISED_P99_MS)}")
    print(
        f"promise: 200,000 objects within {PROMISED_S:g} s: {_kept(took_s <= PROMISED_S * objects / 200_000)}"
    )
    if term_after != term_before:
        sys.exit(f"the leader changed during the deletion: term {term_before}, then {term_after}")
    print(f"no change of the leader: term {term_after}")


def _kept(holds: bool) -> str:
    return "kept" if holds else "NOT KEPT"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="make bench-delete-topic")
    parser.add_argument("--objects", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="the longest that the deletion may take")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ponor-bench-") as directory,
        controllers(Path(directory)) as addresses,
    ):
        uvloop.run(measure(addresses, options.objects, options.seconds))


if __name__ == "__main__":
    main()
