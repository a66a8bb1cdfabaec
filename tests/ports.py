"""Ports for the services that tests start: each worker of a test run chooses among its own, so that none
takes what another is about to use.

They lie below the range from which the system takes the near ends of connections (a client's port may
otherwise be the one that a broker was promised), and above those that `ponor up` chooses for itself.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Final

from ponor_cli.local.ports import END, is_free

WORKERS_MAX: Final = 4
WORKER_PORTS: Final = 3_000
ROW: Final = 100
"""All ports of a `ponor up` follow from its Kafka port (ponor_cli.supervisor.port_plan): a row has room for
them.
"""
HOST: Final = "127.0.0.1"

_rows = itertools.count(os.getpid())
"""Every call takes the next row, also where the services of the last one are not started yet."""


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive unused ports: broker k has the Kafka port + k."""
    assert count <= ROW
    for _ in range(WORKER_PORTS // ROW):
        first = _next_row()
        if all(is_free(HOST, port) for port in range(first, first + count)):
            return first
    raise AssertionError(f"no {count} free ports in a row in the {WORKER_PORTS} ports of this worker")


def free_port() -> int:
    """Return an unused port, another one in each call."""
    return next(_single_ports)


def _next_row() -> int:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
    return END + worker * WORKER_PORTS + next(_rows) * ROW % WORKER_PORTS


def _unused_ports() -> Iterator[int]:
    # A row of its own for each port would use up the rows while ports of ended tests are in TIME_WAIT, and
    # then assign one port twice.
    while True:
        first = _next_row()
        yield from (port for port in range(first, first + ROW) if is_free(HOST, port))


_single_ports = _unused_ports()
