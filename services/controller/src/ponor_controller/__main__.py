"""`python -m ponor_controller --config FILE`: one controller as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path

from ponor_metadata.apply import UnknownRecordError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.lifecycle import StartRefusedError, run_service
from ponor_runtime.ready_file import ServiceAddresses, write_ready_file
from ponor_runtime.runtime import Runtime
from ponor_runtime.settings import SettingError

from ponor_controller.app import run
from ponor_controller.configuration import ControllerConfiguration, read_configuration
from ponor_controller.consensus.errors import DirectoryInUseError, RecordLogCorruptError, WrongDirectoryError

NAME = "ponor_controller"
REMEDIABLE = (DirectoryInUseError, RecordLogCorruptError, UnknownRecordError, WrongDirectoryError)


async def serve(configuration: ControllerConfiguration, runtime: Runtime, stop: asyncio.Event) -> None:
    """Run the controller, its metrics endpoint and its ready file."""
    metrics = start_metrics(runtime, configuration.metrics)

    def ready(addresses: ServiceAddresses) -> None:
        if configuration.ready_file is not None:
            write_ready_file(configuration.ready_file, {**addresses, **metrics})

    await run(runtime, configuration.settings, configuration.options, stop=stop, ready=ready)


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
    parser = argparse.ArgumentParser(prog=NAME, description="The controller of a Ponor cluster.")
    parser.add_argument(
        "--config", type=Path, required=True, help="JSON file, see ponor_controller.configuration"
    )
    path: Path = parser.parse_args().config
    try:
        configuration = read_configuration(path)
    except (StartRefusedError, SettingError) as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        return 1
    return run_service(partial(serve, configuration), name=NAME, network=GrpcNetwork, remediable=REMEDIABLE)


if __name__ == "__main__":
    sys.exit(main())
