"""Runtime ports (clock, disk, network) for one command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.tls import TlsFiles
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry

from ponor_cli.errors import CommandError


@asynccontextmanager
async def command_runtime(tls: TlsFiles | None = None) -> AsyncIterator[Runtime]:
    """Open the ports for the `async with` block. A fail-stop in the block raises `CommandError`."""
    disk, network = SystemDisk(), GrpcNetwork(tls=tls)
    try:
        yield Runtime(SystemClock(), SystemRandomness(), disk, network, Telemetry(), _fail_stop)
    finally:
        await network.close()
        disk.close()


def _fail_stop(what: str, error: BaseException) -> NoReturn:
    raise CommandError(f"{what}: {error}") from error
