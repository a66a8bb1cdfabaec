"""`python -m ponor_controller --config FILE`: one controller as a process of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys

from ponor_metadata.apply import UnknownRecordError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.command import run_from_command_line, start_metrics
from ponor_runtime.ready_file import ServiceAddresses, write_ready_file
from ponor_runtime.runtime import Runtime

from ponor_controller.app import run
from ponor_controller.configuration import ControllerConfiguration, read_configuration
from ponor_controller.consensus.errors import DirectoryInUseError, RecordLogCorruptError, WrongDirectoryError

NAME = "ponor_controller"
GC_THRESHOLDS = (50_000, 50, 100)
"""Few and late collections: rows make no cycles, and a pass over a large image costs more than what it finds."""
REMEDIABLE = (DirectoryInUseError, RecordLogCorruptError, UnknownRecordError, WrongDirectoryError)


async def serve(configuration: ControllerConfiguration, runtime: Runtime, stop: asyncio.Event) -> None:
    """Run the controller, its metrics endpoint and its ready file."""
    gc.set_threshold(*GC_THRESHOLDS)  # before the image is loaded
    metrics = start_metrics(runtime.telemetry, configuration.metrics)

    def ready(addresses: ServiceAddresses) -> None:
        gc.collect()
        gc.freeze()
        if configuration.ready_file is not None:
            write_ready_file(configuration.ready_file, {**addresses, **metrics})

    peer_network = None
    if configuration.peer_tls is not None:
        peer_network = GrpcNetwork(fail_stop=runtime.fail_stop, tls=configuration.peer_tls)
    try:
        await run(
            runtime,
            configuration.settings,
            configuration.options,
            stop=stop,
            ready=ready,
            peer_network=peer_network,
        )
    finally:
        if peer_network is not None:
            await peer_network.close()


def main() -> int:
    """Run; returns the exit code."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    return run_from_command_line(
        serve,
        name=NAME,
        description="The controller of a Ponor cluster.",
        read_configuration=read_configuration,
        network=GrpcNetwork,
        remediable=REMEDIABLE,
    )


if __name__ == "__main__":
    sys.exit(main())
