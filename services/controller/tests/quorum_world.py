"""Three real controllers, created by their own `app.run`, in a simulated world, and a node process
with a session and a subscription.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath

from ponor_controller.app import run
from ponor_controller.consensus.members import Member
from ponor_controller.options import FIRST_CONTROLLER_NUMBER, ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_metadata.client.controllers import KnownControllers
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.nodes import NodeRole, WalKind
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation

ORDINAL = ClusterOrdinal(1)
NAMES = ("c0", "c1", "c2")
ADDRESSES = tuple(f"{name}:9000" for name in NAMES)
SETTINGS = ControllerSettings(session_timeout_ms=3_000, progress_interval_ms=200)
SEGMENT_BYTES = 1 << 20
"""Each controller fills two segments with zeros when it starts; the default size costs CPU time."""


@dataclass
class Clients:
    """The components of a node process."""

    runtime: Runtime
    session: SessionClient
    subscription: SubscriptionClient


Program = Callable[[Clients], Awaitable[None]]


class QuorumWorld:
    """Controllers `c0`, `c1`, `c2`; the test adds nodes."""

    def __init__(self, seed: int, settings: ControllerSettings = SETTINGS) -> None:
        self.simulation = simulation = Simulation(seed)
        self.chance = simulation.chance
        self.network = simulation.network
        self._settings = replace(settings, log_segment_bytes=SEGMENT_BYTES)
        self.controllers = {name: simulation.process(name, partial(self._controller, name)) for name in NAMES}
        self._members = tuple(
            Member(
                compose_node_id(ORDINAL, FIRST_CONTROLLER_NUMBER + number),
                bytes([number + 1]) * 16,
                f"{name}:9001",
                f"{name}:9000",
            )
            for number, name in enumerate(NAMES)
        )

    async def _controller(self, name: str, runtime: Runtime) -> None:
        member = self._members[NAMES.index(name)]
        options = ControllerOptions(
            PurePosixPath("/data"),
            member.service_address,
            ORDINAL,
            node_id=member.node_id,
            peer_listen=member.peer_address,
            voters=self._members,
            format=True,
        )
        await run(runtime, self._settings, options, stop=asyncio.Event(), ready=lambda _: None)

    def node(
        self,
        name: str,
        program: Program,
        *,
        number: int = 0,
        wal: WalKind | None = None,
        role: NodeRole = NodeRole.BROKER,
    ) -> SimProcess:
        """A broker or another node, as the controllers see it; it runs `program` after its registration."""

        async def main(runtime: Runtime) -> None:
            known = KnownControllers(ADDRESSES)
            subscription = SubscriptionClient(
                network=runtime.network,
                clock=runtime.clock,
                randomness=runtime.randomness,
                telemetry=runtime.telemetry,
                addresses=known,
            )
            identity = NodeIdentity(
                compose_node_id(ORDINAL, number),
                role,
                runtime.randomness.token(16),
                kafka_host="h" if role is NodeRole.BROKER else "",
                kafka_port=1 if role is NodeRole.BROKER else 0,
                wal=wal,
            )
            session = SessionClient(
                network=runtime.network,
                clock=runtime.clock,
                randomness=runtime.randomness,
                telemetry=runtime.telemetry,
                identity=identity,
                addresses=known,
                applied_index=lambda: subscription.image.index,
            )
            running = [asyncio.create_task(session.run()), asyncio.create_task(subscription.run())]
            await session.ready()
            await program(Clients(runtime, session, subscription))
            await asyncio.gather(*running)

        return self.simulation.process(name, main)

    def start(self) -> None:
        for process in self.simulation.processes.values():
            process.start()

    def leaders(self) -> list[str]:
        """The controllers that believe to lead."""
        return [
            name
            for name, process in self.controllers.items()
            if process.running
            and process.runtime is not None
            and any(value for _, value in process.runtime.telemetry.gauges("ponor_controller_raft_leading"))
        ]

    async def leader(self) -> str:
        """Wait for a leader that is not paused."""

        def found() -> list[str]:
            return [name for name in self.leaders() if not self.controllers[name].paused]

        await wait_until(lambda: bool(found()))
        return found()[0]

    def isolate(self, name: str, *others: str) -> None:
        """Cut a process off from some others in both directions."""
        for other in others:
            self.network.cut(name, other)
            self.network.cut(other, name)

    def heal(self) -> None:
        """Start all processes and repair all links."""
        self.network.heal()
        for process in self.controllers.values():
            if not process.running:
                process.start()
            elif process.paused:
                process.resume()
