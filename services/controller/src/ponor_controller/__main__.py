"""`python -m ponor_controller --config FILE`: one controller as a process."""

from __future__ import annotations

import asyncio
import gc

from ponor_metadata.image.apply import UnknownRecordError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.command import announce, run_from_command_line, start_metrics
from ponor_runtime.lifecycle import end_process
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime

from ponor_controller.app import run
from ponor_controller.configuration import ControllerConfiguration, read_configuration
from ponor_controller.consensus.errors import DirectoryInUseError, RecordLogCorruptError, WrongDirectoryError

NAME = "ponor_controller"
LOADING_THRESHOLDS = (50_000, 50, 100)
"""GC thresholds during the start. They are high: loaded rows form no cycles, and `gc.freeze` is called
later."""
SERVING_THRESHOLDS = (500, 50, 2_000)
"""GC thresholds while serving. Young objects are collected often. Rare collections are large, because the
objects of a thousand operations in flight are all alive: they took 10 ms each and a quarter of a leader's CPU
(docs/design/sessions-and-subscriptions.md#cost-of-an-operation). Old objects are collected rarely, because a
pass over a large image takes a long time and frees little (docs/design/time-and-turns.md#garbage-collection).
"""
REMEDIABLE = (DirectoryInUseError, RecordLogCorruptError, UnknownRecordError, WrongDirectoryError)


async def serve(configuration: ControllerConfiguration, runtime: Runtime, stop: asyncio.Event) -> None:
    """Run the controller, its metrics endpoint and its ready file."""
    gc.set_threshold(*LOADING_THRESHOLDS)
    metrics = start_metrics(runtime, configuration.metrics)

    def ready(addresses: ServiceAddresses) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*SERVING_THRESHOLDS)
        announce(runtime, configuration.ready_file, {**addresses, **metrics})

    peer_network = None
    if configuration.options.peer_tls is not None:
        peer_network = GrpcNetwork(
            fail_stop=runtime.fail_stop, tls=configuration.options.peer_tls, health=runtime.health
        )
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
    return run_from_command_line(
        serve,
        name=NAME,
        description="The controller of a Ponor cluster.",
        read_configuration=read_configuration,
        network=GrpcNetwork.reporting,
        remediable=REMEDIABLE,
    )


if __name__ == "__main__":
    end_process(main())
