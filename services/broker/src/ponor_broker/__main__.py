"""`python -m ponor_broker --config FILE`: one broker process."""

from __future__ import annotations

import asyncio
import gc
import os

from ponor_journal.errors import JournalIdentityError
from ponor_metadata.client.errors import SessionClosedError, WrongClusterError
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.command import announce, run_from_command_line, start_metrics
from ponor_runtime.freed_memory import use_freed_memory_again
from ponor_runtime.lifecycle import StartRefusedError, end_process
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from s3stream.errors import StorageFailedError, WalCorruptError
from s3stream.stores.open_store import open_object_store
from s3stream.stores.probe.start_check import UnsafeStoreError

from ponor_broker.app import DirectoryInUseError, run
from ponor_broker.configuration import BrokerConfiguration, read_configuration
from ponor_broker.store_proof import prove_store

NAME = "ponor_broker"
REMEDIABLE = (
    DirectoryInUseError,
    JournalIdentityError,
    ObjectStoreError,
    OperationError,
    SessionClosedError,
    StorageFailedError,
    UnsafeStoreError,
    WalCorruptError,
    WrongClusterError,
)
GC_THRESHOLDS = (50_000, 50, 100)
"""High thresholds, for few collections: the hot path creates no reference cycles, and a collection with a
large image costs more than it frees."""


async def serve(configuration: BrokerConfiguration, runtime: Runtime, stop: asyncio.Event) -> None:
    """Run the broker, its metrics endpoint and its ready file."""
    # Set before anything is opened: a start creates millions of objects that exist as long as the process.
    gc.set_threshold(*GC_THRESHOLDS)
    metrics = start_metrics(runtime, configuration.metrics)
    try:
        store = await open_object_store(
            configuration.options.object_store, runtime=runtime, environment=os.environ
        )
    except ValueError as error:
        raise StartRefusedError(str(error)) from error

    def ready(addresses: ServiceAddresses) -> None:
        gc.collect()
        gc.freeze()
        announce(runtime, configuration.ready_file, {**addresses, **metrics})

    try:
        condition = await prove_store(
            configuration.options.object_store, runtime, os.environ, configuration.options.wal
        )
        await run(
            runtime,
            configuration.settings,
            configuration.options,
            store=store,
            stop=stop,
            ready=ready,
            condition=condition,
        )
    finally:
        await store.close()


def main() -> int:
    """Run the broker; return the exit code."""
    use_freed_memory_again()
    return run_from_command_line(
        serve,
        name=NAME,
        description="A broker of a Ponor cluster.",
        read_configuration=read_configuration,
        network=GrpcNetwork.reporting,
        remediable=REMEDIABLE,
    )


if __name__ == "__main__":
    end_process(main())
