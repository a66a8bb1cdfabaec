"""Entry point of `python -m ponor_compactor --config FILE`: run one compactor process."""

from __future__ import annotations

import asyncio
import gc
import os
import resource

from ponor_metadata.client.errors import NodeFencedError, WrongClusterError
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.command import announce, run_from_command_line, start_metrics
from ponor_runtime.freed_memory import use_freed_memory_again
from ponor_runtime.lifecycle import StartRefusedError, end_process
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from s3stream.stores.open_store import open_stores

from ponor_compactor.app import run
from ponor_compactor.configuration import CompactorConfiguration, read_configuration
from ponor_compactor.pace import Pace

NAME = "ponor_compactor"
REMEDIABLE = (NodeFencedError, OperationError, ObjectStoreError, WrongClusterError)
GC_THRESHOLDS = (50_000, 50, 100)
"""Run Python's garbage collector rarely: most objects are index entries, which form no cycles."""


async def serve(configuration: CompactorConfiguration, runtime: Runtime, stop: asyncio.Event) -> None:
    """Run the compactor, its metrics endpoint and its ready file."""
    gc.set_threshold(*GC_THRESHOLDS)
    metrics = start_metrics(runtime, configuration.metrics)
    runtime.telemetry.gauge("ponor_compactor_resident_max_bytes", _resident_bytes_max)
    pace = Pace(runtime.clock, configuration.settings, runtime.telemetry)
    try:
        store, multipart = await open_stores(
            configuration.options.object_store, runtime=runtime, environment=os.environ, policy=pace
        )
    except ValueError as error:
        raise StartRefusedError(str(error)) from error

    def ready(addresses: ServiceAddresses) -> None:
        gc.collect()
        gc.freeze()
        announce(runtime, configuration.ready_file, {**addresses, **metrics})

    try:
        await run(
            runtime,
            configuration.settings,
            configuration.options,
            store=store,
            multipart=multipart,
            stop=stop,
            ready=ready,
            pace=pace,
        )
    finally:
        await multipart.close()
        await store.close()


def _resident_bytes_max() -> float:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    """Run the compactor and return the exit code."""
    use_freed_memory_again()
    return run_from_command_line(
        serve,
        name=NAME,
        description="A compactor of a Ponor cluster.",
        read_configuration=read_configuration,
        network=GrpcNetwork.reporting,
        remediable=REMEDIABLE,
    )


if __name__ == "__main__":
    end_process(main())
