"""Command line of a service: `python -m ponor_ROLE --config FILE`, the same for all services.

Each service defines the keys of its own configuration file.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from ponor_runtime import log_lines
from ponor_runtime.lifecycle import NetworkOf, StartRefusedError, run_service
from ponor_runtime.ready_file import ServiceAddresses, write_ready_file
from ponor_runtime.runtime import Runtime
from ponor_runtime.settings import SettingError

C = TypeVar("C")
Serve: TypeAlias = Callable[[C, Runtime, asyncio.Event], Awaitable[None]]


def run_from_command_line(
    serve: Serve[C],
    *,
    name: str,
    description: str,
    read_configuration: Callable[[Path], C],
    network: NetworkOf,
    remediable: tuple[type[BaseException], ...] = (),
) -> int:
    """Parse `--config FILE`, read the file and run the service.

    Return the exit code (listed in `lifecycle`).
    """
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--config", type=Path, required=True, help=f"JSON file, see {name}.configuration")
    try:
        configuration = read_configuration(parser.parse_args().config)
    except (StartRefusedError, SettingError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    log_lines.log_to_stderr()
    return run_service(partial(serve, configuration), name=name, network=network, remediable=remediable)


def start_metrics(runtime: Runtime, address: str | None) -> dict[str, str]:
    """Serve Prometheus metrics and probes on HOST:PORT. Return {"metrics": bound address}; {} without one.

    Raises:
        StartRefusedError: the address is not HOST:PORT.
        OSError: the address cannot be bound.
    """
    if address is None:
        return {}
    from ponor_runtime.telemetry_export import serve_prometheus

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise StartRefusedError(f"metrics address {address!r} is not HOST:PORT")
    clock, health = runtime.clock, runtime.health
    runtime.telemetry.gauge("ponor_ready", lambda: float(health.ready(clock.monotonic_ns()).is_good))
    probes = {
        "/livez": lambda: health.live(clock.monotonic_ns()),
        "/readyz": lambda: health.ready(clock.monotonic_ns()),
    }
    endpoint = serve_prometheus(runtime.telemetry, host.strip("[]"), int(port), probes=probes)
    return {"metrics": f"{host}:{endpoint.port}"}


def announce(runtime: Runtime, ready_file: Path | None, addresses: ServiceAddresses) -> None:
    """Mark the service as started and write the ready file, if configured.

    From now on the health conditions decide readiness; the ready file is rewritten whenever they change.
    """
    runtime.health.announce()
    if ready_file is not None:
        runtime.health.on_change(lambda unmet: write_ready_file(ready_file, addresses, unmet))
