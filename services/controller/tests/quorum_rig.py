"""A quorum of real controllers in one simulation, with disks that lose unsynced data and a faulty network.

It compares the controllers' digests: after a batch, all of them must have the same digest, in every
life of a process.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any
from unittest.mock import patch

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.app import run
from ponor_controller.consensus.members import Member
from ponor_controller.controller import Controller
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import NodeRole
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation

ORDINAL = ClusterOrdinal(1)
DATA = PurePosixPath("/controller")
SETTINGS = ControllerSettings(
    log_segment_bytes=64 * 1024,
    batch_bytes_max=64 * 1024,
    snapshot_batches=100,
    log_trailing_batches=20,
    session_timeout_ms=2_000,
    progress_interval_ms=100,
)


def member(number: int, *, voter: bool = True, directory: int | None = None) -> Member:
    """The controller with this number, with an identity that is set before its start."""
    directory_id = uuid.UUID(int=number + 1 if directory is None else directory).bytes
    node_id = compose_node_id(ORDINAL, 3_000 + number)
    return Member(node_id, directory_id, f"c{number}:7001", f"c{number}:7000", voter)


class QuorumRig:
    """Use it within `with rig.watching():`."""

    def __init__(
        self, seed: int, voters: int = 3, blank: int = 0, settings: ControllerSettings = SETTINGS
    ) -> None:
        self.simulation = Simulation(seed)
        self.settings = settings
        self.members = [member(number) for number in range(voters)]
        self.lives: dict[str, Controller] = {}
        self.ready: dict[str, dict[str, str]] = {}
        self.digests: dict[int, bytes] = {}
        self.leaders: dict[int, str] = {}
        self.processes = [self._process(number) for number in range(voters + blank)]

    def _process(self, number: int) -> SimProcess:
        name = f"c{number}"
        initial = number < len(self.members)
        options = ControllerOptions(
            DATA,
            f"{name}:7000",
            ORDINAL,
            node_id=member(number).node_id,
            peer_listen=f"{name}:7001",
            voters=tuple(self.members),
            format=initial,
        )

        async def main(runtime: Runtime) -> None:
            stop = asyncio.Event()
            await run(
                runtime,
                self.settings,
                options,
                stop=stop,
                ready=lambda addresses: self.ready.update({name: dict(addresses)}),
            )

        return self.simulation.process(name, main)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe every controller that is created in the block."""
        rig = self

        class Watched(Controller):
            def __init__(self, *args: Any, **named: Any) -> None:
                super().__init__(*args, **named)
                self.name = self.addresses.service_address(self.driver.node.own).partition(":")[0]
                rig.lives[self.name] = self
                rig.saw(self)
                self.driver.on_commit(lambda _: rig.saw(self))
                self.driver.on_leading(lambda: rig.leads(self))

        with patch("ponor_controller.app.Controller", Watched):
            yield

    def saw(self, controller: Controller) -> None:
        """Check that no two controllers have different content at one index."""
        image = controller.image
        if image.index:
            assert self.digests.setdefault(image.index, image.digest) == image.digest, (
                f"two histories at index {image.index}"
            )

    def leads(self, controller: Any) -> None:
        """Check that each term has at most one leader."""
        term = controller.driver.node.term
        assert self.leaders.setdefault(term, controller.name) == controller.name
        assert controller.proposer.view.index == controller.driver.node.last_index, (
            "the overlay is the end of the log"
        )

    def alive(self) -> list[Controller]:
        """Controllers whose process runs."""
        return [
            self.lives[process.name]
            for process in self.processes
            if process.running and process.name in self.lives
        ]

    def _forming(self) -> bool:
        """Whether a first voter runs that has not received the new cluster's formation."""
        first = self.processes[: len(self.members)]
        return any(process.running and process.name not in self.lives for process in first)

    def leader(self) -> Controller | None:
        """The leader of the newest term among the running controllers."""
        leading = [each for each in self.alive() if each.driver.leading]
        return max(leading, key=lambda each: each.driver.node.term, default=None)

    def process_of(self, controller: Any) -> SimProcess:
        """The process in which a controller runs."""
        return self.simulation.processes[controller.name]

    async def until_led(self, *, other_than: Controller | None = None) -> Controller:
        """Wait for a leader."""
        await wait_until(lambda: self.leader() not in (None, other_than), timeout_s=30)
        leader = self.leader()
        assert leader is not None
        return leader

    async def until_equal(self, names: Sequence[str] | None = None) -> None:
        """Wait until all controllers (or the named ones) have applied the same, and everything."""

        def equal() -> bool:
            images = [each.image for each in self.alive() if names is None or each.name in names]  # type: ignore[attr-defined]
            leader = self.leader()
            if names is None and self._forming():
                return False
            return leader is not None and {image.index for image in images} == {leader.driver.node.last_index}

        await wait_until(equal, timeout_s=60)

    def start(self) -> None:
        """Start all."""
        for process in self.processes:
            process.start()


class Writer:
    """A node that puts keys through a session with the leader. `acknowledged` must never be lost."""

    def __init__(self, rig: QuorumRig, addresses: Sequence[str] = ("c0:7000", "c1:7000", "c2:7000")) -> None:
        self.acknowledged: dict[str, int] = {}
        self.wanted = 0
        self._addresses = addresses
        self.process = rig.simulation.process("writer", self._main)
        self._stopping = False

    async def _main(self, runtime: Runtime) -> None:
        identity = NodeIdentity(
            compose_node_id(ORDINAL, 0), NodeRole.BROKER, b"w" * 16, kafka_host="w", kafka_port=9092
        )
        session = SessionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            identity=identity,
            addresses=list(self._addresses),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(session.run())
            for number in range(4):
                group.create_task(self._write(session, number, runtime))

    async def _write(self, session: SessionClient, worker: int, runtime: Runtime) -> None:
        await session.ready()
        count = 0
        while True:
            key = f"{worker}/{count}"
            count += 1
            result = await session.submit(wire.Operation(put_key=wire.PutKey(key=key, value=b"v" * 50)))
            assert result.key_held.created, f"{key} was put twice"
            self.acknowledged[key] = result.commit_index
            await runtime.clock.sleep(0.005 + 0.01 * runtime.randomness.uniform(0, 1))

    async def until_written(self, count: int) -> None:
        """Wait for this many more acknowledged keys."""
        goal = len(self.acknowledged) + count
        await wait_until(
            lambda: len(self.acknowledged) >= goal or self.process.failure is not None, timeout_s=120
        )
        assert self.process.failure is None, f"the writer failed: {self.process.failure!r}"

    def check(self, controller: Controller) -> None:
        """Check that everything acknowledged is present."""
        keys = {row.key for row in controller.image[KEYS]}
        missing = [key for key in self.acknowledged if key not in keys]
        assert not missing, f"{len(missing)} acknowledged keys are lost, such as {missing[0]}"
