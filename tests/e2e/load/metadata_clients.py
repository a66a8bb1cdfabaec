"""Clients that change and read metadata continuously and record their histories.

They act like brokers, in a separate process: each has a session (put a key if it has no value), a
subscription and linearizable reads (an index from the quorum, then the local image at that index). All race
for the same few keys. Times are of the machine's monotonic clock, which all processes share, so that a
history can be compared with kills by another process.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ponor.controller.v1 import quorum_service_pb2 as quorum_wire
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.controllers import KnownControllers
from ponor_metadata.client.leader_calls import NoControllerError
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

CLIENT_NUMBER_FIRST: Final = 1900
FIRST_ORDINAL: Final = ClusterOrdinal(1)
SLOTS_PER_S: Final = 5
"""Rate at which all clients switch to a new key. A key is written once, so only a new key is contended."""
READ_S_MAX: Final = 20.0
PAUSE_S: Final = 0.002
"""Short, to load the controllers fully."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation as seen by its client.

    `end_ns` None: no response. `held`: a put's resulting value, or the value read.
    """

    client: int
    key: str
    kind: str
    value: bytes
    begin_ns: int
    end_ns: int | None
    held: bytes | None
    created: bool


@dataclass(frozen=True, slots=True)
class MetadataLoad:
    """Configuration of the clients' process."""

    controllers: Sequence[str]
    clients: int
    seed: int
    stop_file: str
    started_file: str
    pause_s: float = PAUSE_S
    """Pause of each client between two operations."""
    cluster_ordinal: ClusterOrdinal = FIRST_ORDINAL


def run_metadata_clients(load: MetadataLoad) -> list[Call]:
    """Run until the stop file appears; return the unordered history of all clients."""
    return asyncio.run(_run(load))


async def _run(load: MetadataLoad) -> list[Call]:
    network = GrpcNetwork()
    history: list[Call] = []
    clients = [_Client(load, number, network, history) for number in range(load.clients)]
    await asyncio.gather(*(client.start() for client in clients))
    Path(load.started_file).touch()
    await asyncio.gather(*(client.work() for client in clients))
    await asyncio.gather(*(client.close() for client in clients))
    await network.close()
    return history


class _Client:
    def __init__(self, load: MetadataLoad, number: int, network: GrpcNetwork, history: list[Call]) -> None:
        self._load = load
        self._number = number
        self._history = history
        self._chance = random.Random(load.seed * 1000 + number)
        # Each client starts at another controller, so that followers and former leaders also serve reads.
        at = number % len(load.controllers)
        # The subscription's knowledge of the quorum serves all three, so they survive the replacement of
        # every initial controller.
        addresses = KnownControllers([*load.controllers[at:], *load.controllers[:at]])
        clock, randomness, telemetry = SystemClock(), SystemRandomness(), Telemetry()
        self._quorum = QuorumClient(network, clock, addresses)
        self._subscription = SubscriptionClient(
            network=network, clock=clock, randomness=randomness, telemetry=telemetry, addresses=addresses
        )
        self._session = SessionClient(
            network=network,
            clock=clock,
            randomness=randomness,
            telemetry=telemetry,
            identity=NodeIdentity(
                compose_node_id(load.cluster_ordinal, CLIENT_NUMBER_FIRST + number),
                NodeRole.GC,
                os.urandom(16),
            ),
            addresses=addresses,
            applied_index=lambda: self._subscription.image.index,
        )
        self._running: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Register."""
        self._running = [
            asyncio.create_task(self._subscription.run()),
            asyncio.create_task(self._session.run()),
        ]
        await self._session.ready()

    async def work(self) -> None:
        """Run puts and reads, one at a time."""
        stop = Path(self._load.stop_file)
        while not stop.exists():
            key = f"race/{self._load.seed}/{int(time.monotonic() * SLOTS_PER_S)}"
            if self._chance.random() < 0.5:
                await self._put(key)
            else:
                await self._read(key)
            await asyncio.sleep(self._load.pause_s)

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()
        await self._subscription.close()
        await asyncio.gather(*self._running)

    async def _put(self, key: str) -> None:
        value = f"{self._number}-{len(self._history)}".encode()
        begin_ns = time.monotonic_ns()
        result = await self._session.submit(wire.Operation(put_key=wire.PutKey(key=key, value=value)))
        held = result.key_held
        self._add(key, "put", value, begin_ns, held.value, created=held.created)

    async def _read(self, key: str) -> None:
        begin_ns = time.monotonic_ns()
        try:
            answer = await self._quorum.ask(
                quorum_wire.QuorumRequest(read_index=quorum_wire.ReadIndex()), timeout_s=READ_S_MAX
            )
        except NoControllerError:
            return  # a read without a response changes and proves nothing
        await self._subscription.wait_for(answer.done.index)
        row = self._subscription.image[KEYS].get(key)
        self._add(key, "read", b"", begin_ns, None if row is None else row.value, created=False)

    def _add(
        self, key: str, kind: str, value: bytes, begin_ns: int, held: bytes | None, *, created: bool
    ) -> None:
        end_ns = time.monotonic_ns()
        self._history.append(Call(self._number, key, kind, value, begin_ns, end_ns, held, created))
