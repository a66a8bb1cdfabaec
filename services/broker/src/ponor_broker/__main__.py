"""`python -m ponor_broker --config FILE`: one broker as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
from functools import partial
from pathlib import Path

from ponor_journal.errors import JournalIdentityError
from ponor_metadata.errors import SessionClosedError
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.lifecycle import StartRefusedError, run_service
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.ready_file import ServiceAddresses, write_ready_file
from ponor_runtime.runtime import Runtime
from ponor_runtime.settings import SettingError
from s3stream.errors import WalCorruptError
from s3stream.stores.open_store import open_object_store

from ponor_broker.app import DirectoryInUseError, run
from ponor_broker.configuration import BrokerConfiguration, read_configuration

NAME = "ponor_broker"
REMEDIABLE = (
    DirectoryInUseError,
    JournalIdentityError,
    ObjectStoreError,
    OperationError,
    SessionClosedError,
    WalCorruptError,
)
GC_THRESHOLDS = (50_000, 50, 100)
"""Few and late collections: the hot path makes no cycles, and a pass over a large image costs more than what it finds."""


async def serve(configuration: BrokerConfiguration, runtime: Runtime, stop: asyncio.Event) -> None:
    """Run the broker, its metrics endpoint and its ready file."""
    metrics = start_metrics(runtime, configuration.metrics)
    try:
        store = await open_object_store(configuration.object_store, runtime=runtime, environment=os.environ)
    except ValueError as error:
        raise StartRefusedError(str(error)) from error

    def ready(addresses: ServiceAddresses) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        if configuration.ready_file is not None:
            write_ready_file(configuration.ready_file, {**addresses, **metrics})

    try:
        await run(runtime, configuration.settings, configuration.options, store=store, stop=stop, ready=ready)
    finally:
        await store.close()


def start_metrics(runtime: Runtime, address: str | None) -> dict[str, str]:
    """Serve Prometheus metrics on HOST:PORT, if an address is given; the bound address under "metrics"."""
    if address is None:
        return {}
    from ponor_runtime.telemetry_export import start_prometheus

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise StartRefusedError(f"metrics address {address!r}: write HOST:PORT")
    return {"metrics": f"{host}:{start_prometheus(runtime.telemetry, host, int(port))}"}


def main() -> int:
    """Parse the command line and run; returns the exit code."""
    parser = argparse.ArgumentParser(prog=NAME, description="A broker of a Ponor cluster.")
    parser.add_argument(
        "--config", type=Path, required=True, help="JSON file, see ponor_broker.configuration"
    )
    path: Path = parser.parse_args().config
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        configuration = read_configuration(path)
    except (StartRefusedError, SettingError) as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        return 1
    return run_service(partial(serve, configuration), name=NAME, network=GrpcNetwork, remediable=REMEDIABLE)


if __name__ == "__main__":
    sys.exit(main())
