"""A real etcd of three members on this machine, and a minimal client for put.

The client implements KV.Put (key is field 1, value is field 2, both bytes). etcd comes from the
machine's packages; nothing is fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc

from tests.ports import free_port

MEMBERS: Final = 3
PUT: Final = "/etcdserverpb.KV/Put"
START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 10.0


def etcd_is_there() -> bool:
    """Whether the machine has an etcd server."""
    return shutil.which("etcd") is not None


class EtcdClient:
    """Puts through one channel to one member."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._put: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(PUT)

    async def put(self, key: bytes, value: bytes) -> None:
        """Put a key; it is durable at a majority on return."""
        await self._put(_field(1, key) + _field(2, value), timeout=START_S_MAX)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@contextmanager
def etcd_cluster(directory: Path) -> Iterator[str]:
    """Run three members below a directory; yield HOST:PORT of the leader."""
    ports = [free_port() for _ in range(2 * MEMBERS)]
    clients, peers = ports[:MEMBERS], ports[MEMBERS:]
    initial = ",".join(f"n{at}=http://127.0.0.1:{port}" for at, port in enumerate(peers))
    processes = [
        _start(directory / f"n{at}", f"n{at}", clients[at], peers[at], initial) for at in range(MEMBERS)
    ]
    try:
        yield asyncio.run(_leader(clients))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S_MAX)
            process.kill()


def _start(data: Path, name: str, client: int, peer: int, initial: str) -> subprocess.Popen[bytes]:
    data.mkdir(parents=True)
    listen, say = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    with (data / "log").open("wb") as log:
        return subprocess.Popen(
            [
                "etcd",
                *("--name", name, "--data-dir", str(data / "data")),
                *("--listen-client-urls", listen, "--advertise-client-urls", listen),
                *("--listen-peer-urls", say, "--initial-advertise-peer-urls", say),
                *("--initial-cluster", initial, "--initial-cluster-state", "new"),
            ],
            stdout=log,
            stderr=log,
        )


async def _leader(ports: list[int]) -> str:
    """Make the member with the fastest puts the leader, so that it need not forward them."""
    times: dict[str, float] = {}
    for port in ports:
        address = f"127.0.0.1:{port}"
        client = EtcdClient(address)
        try:
            await _until_served(client)
            began = time.monotonic()
            for number in range(100):
                await client.put(b"probe", b"%d" % number)
            times[address] = time.monotonic() - began
        finally:
            await client.close()
    return min(times, key=times.__getitem__)


async def _until_served(client: EtcdClient) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            await client.put(b"probe", b"")
            return
        except grpc.aio.AioRpcError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
