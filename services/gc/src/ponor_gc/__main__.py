"""Entry point of `python -m ponor_gc --config FILE`: run one garbage collector process."""

from __future__ import annotations

import asyncio
import os

from ponor_metadata.client.errors import NodeFencedError, WrongClusterError
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.command import announce, run_from_command_line, start_metrics
from ponor_runtime.lifecycle import StartRefusedError, end_process
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from s3stream.stores.open_store import open_stores

from ponor_gc.app import run
from ponor_gc.configuration import GcConfiguration, read_configuration
from ponor_gc.deletion_pace import DeletionPace

NAME = "ponor_gc"
REMEDIABLE = (NodeFencedError, OperationError, ObjectStoreError, WrongClusterError)


async def serve(configuration: GcConfiguration, runtime: Runtime, stop: asyncio.Event) -> None:
    """Run the collector, its metrics endpoint and its ready file."""
    metrics = start_metrics(runtime, configuration.metrics)
    pace = DeletionPace(runtime.clock, configuration.settings, runtime.telemetry)
    try:
        store, multipart = await open_stores(
            configuration.options.object_store, runtime=runtime, environment=os.environ, policy=pace
        )
    except ValueError as error:
        raise StartRefusedError(str(error)) from error

    def ready(addresses: ServiceAddresses) -> None:
        announce(runtime, configuration.ready_file, {**addresses, **metrics})

    try:
        await run(
            runtime,
            configuration.settings,
            configuration.options,
            store=store,
            stop=stop,
            ready=ready,
            multipart=multipart,
        )
    finally:
        await multipart.close()
        await store.close()


def main() -> int:
    """Run the collector and return the exit code."""
    return run_from_command_line(
        serve,
        name=NAME,
        description="The garbage collector of a Ponor cluster.",
        read_configuration=read_configuration,
        network=GrpcNetwork.reporting,
        remediable=REMEDIABLE,
    )


if __name__ == "__main__":
    end_process(main())
