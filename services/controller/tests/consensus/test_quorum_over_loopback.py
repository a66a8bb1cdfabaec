"""Three real controllers with gRPC on loopback and real disks in one event loop; a controller is
cancelled in the middle of its work. Other tests kill processes.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.app import run
from ponor_controller.consensus.members import Member
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image import snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.methods import PEER
from ponor_rpc.tls import TlsFiles
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry

from tests.ports import HOST, free_port

ORDINAL = ClusterOrdinal(5)
SETTINGS = ControllerSettings(
    log_segment_bytes=4 << 20,
    snapshot_batches=200,
    log_trailing_batches=50,
    progress_interval_ms=50,
    session_timeout_ms=60_000,  # no node is suspected because this machine paused
    session_reset_grace_ms=60_000,
)


LAG_MS_MAX = 90_000
"""Only a hanging test takes this long, even on a busy machine."""


def _free_address() -> str:
    return f"{HOST}:{free_port()}"


@dataclass
class Machine:
    """The directory and addresses of one controller; `task` while it runs."""

    member: Member
    directory: Path
    voters: tuple[Member, ...]
    tls: TlsFiles | None = None
    formats: bool = True
    networks: list[GrpcNetwork] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def start(self) -> None:
        network = GrpcNetwork()
        peers = GrpcNetwork(tls=self.tls) if self.tls is not None else network
        self.networks = [network, peers]
        self.stop = asyncio.Event()
        options = ControllerOptions(
            self.directory,
            self.member.service_address,
            ORDINAL,
            node_id=self.member.node_id,
            peer_listen=self.member.peer_address,
            voters=self.voters,
            format=self.formats,
        )
        runtime = Runtime(SystemClock(), SystemRandomness(), SystemDisk(), network, Telemetry())
        self.task = asyncio.create_task(
            run(runtime, SETTINGS, options, stop=self.stop, ready=lambda _: None, peer_network=peers)
        )

    async def cut_off(self) -> None:
        """Cancel it without a shutdown."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._close_networks()

    async def end(self) -> None:
        """Stop it as an operator does."""
        if self.task is not None and not self.task.done():
            self.stop.set()
            await self.task
        await self._close_networks()

    async def _close_networks(self) -> None:
        for network in self.networks:
            await network.close()
        self.networks = []


@asynccontextmanager
async def machines(path: Path, tls: list[TlsFiles] | None = None) -> AsyncIterator[list[Machine]]:
    """Three running controllers."""
    voters = tuple(
        Member(compose_node_id(ORDINAL, 3_000 + n), bytes([n + 1] * 16), _free_address(), _free_address())
        for n in range(3)
    )
    all_three = [
        Machine(voter, path / str(n), voters, tls[n] if tls else None) for n, voter in enumerate(voters)
    ]
    try:
        for machine in all_three:
            machine.start()
        yield all_three
    finally:
        await asyncio.gather(*(machine.end() for machine in all_three))


@asynccontextmanager
async def a_node(all_three: list[Machine]) -> AsyncIterator[tuple[SessionClient, SubscriptionClient]]:
    """A broker's session and subscription."""
    network, clock, randomness = GrpcNetwork(), SystemClock(), SystemRandomness()
    addresses = [machine.member.service_address for machine in all_three]
    session = SessionClient(
        network=network,
        clock=clock,
        randomness=randomness,
        telemetry=Telemetry(),
        identity=NodeIdentity(
            compose_node_id(ORDINAL, 0), NodeRole.BROKER, b"b" * 16, kafka_host="b", kafka_port=9092
        ),
        addresses=addresses,
    )
    subscription = SubscriptionClient(
        network=network, clock=clock, randomness=randomness, telemetry=Telemetry(), addresses=addresses
    )
    tasks = [asyncio.create_task(session.run()), asyncio.create_task(subscription.run())]
    try:
        await asyncio.wait_for(session.ready(), LAG_MS_MAX / 1000)
        yield session, subscription
    finally:
        await session.close()
        await subscription.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await network.close()


def _put(key: str) -> wire.Operation:
    return wire.Operation(put_key=wire.PutKey(key=key, value=b"v"))


async def test_every_controller_is_cancelled_and_restarted_while_a_node_works(tmp_path: Path) -> None:
    async with machines(tmp_path) as all_three, a_node(all_three) as (session, subscription):
        count = 0
        for machine in (*all_three, *all_three):
            await machine.cut_off()
            results = await asyncio.gather(*(session.submit(_put(f"k{count + n}")) for n in range(100)))
            assert all(result.key_held.created for result in results), "exactly once"
            count += 100
            machine.start()
        last = (await session.submit(_put("last"))).commit_index
        await subscription.wait_for(last, LAG_MS_MAX)
        assert len(subscription.image[KEYS]) == count + 1
        images = await images_of(all_three, last)
    assert images[0] == images[1] == images[2]


async def images_of(all_three: list[Machine], index: int) -> list[bytes]:
    """The states of all controllers at one index. Later indices are accepted: a long pause of the
    machine causes an election, which writes a record.
    """
    while True:
        shown = [await _image_of(machine, index) for machine in all_three]
        index = max(image.index for image in shown)
        if all(image.index == index for image in shown):
            return [snapshot.encode(image) for image in shown]


async def _image_of(machine: Machine, index: int) -> MetadataImage:
    """The state of one controller at an index, from a separate subscription to it."""
    network = GrpcNetwork()
    follower = SubscriptionClient(
        network=network,
        clock=SystemClock(),
        randomness=SystemRandomness(),
        telemetry=Telemetry(),
        addresses=[machine.member.service_address],
    )
    task = asyncio.create_task(follower.run())
    try:
        await follower.wait_for(index, LAG_MS_MAX)
        return follower.image
    finally:
        await follower.close()
        await asyncio.gather(task, return_exceptions=True)
        await network.close()


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made by openssl, which is not installed"
)
async def test_controllers_use_mutual_tls_and_refuse_peers_without_a_certificate(
    tmp_path: Path,
) -> None:
    tls = _certificates(tmp_path)
    async with machines(tmp_path, [tls] * 3) as all_three, a_node(all_three) as (session, _):
        assert (await session.submit(_put("secret"))).key_held.created
        stranger = GrpcNetwork()
        try:
            connection = await stranger.connect(all_three[0].member.peer_address, PEER)
            with pytest.raises(ConnectionClosedError):
                await connection.send(b"hello")
                await connection.receive()
            await connection.close()
        finally:
            await stranger.close()


def _certificates(path: Path) -> TlsFiles:
    """A certificate authority, and one certificate for 127.0.0.1."""
    files = TlsFiles(path / "c.pem", path / "c.key", path / "ca.pem")
    (path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    commands = (
        f"req -x509 {new_key} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        f"req {new_key} -subj /CN=controller -keyout c.key -out c.csr",
        "x509 -req -in c.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out c.pem",
    )
    for command in commands:
        subprocess.run(["openssl", *command.split()], cwd=path, check=True, capture_output=True)
    return files
