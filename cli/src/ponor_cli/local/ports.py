"""Free ports of this machine, outside the system's ephemeral range.

The system may give an ephemeral port to any outgoing connection between this check and the
service's bind, or while a service restarts.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from functools import partial
from typing import Final

from ponor_cli.errors import CommandError

FIRST: Final = 10_000
END: Final = 20_000
"""Below the ephemeral range of every system: Linux starts at 32,768, others at 49,152."""
ROW: Final = 50
SCATTER: Final = 89
"""Processes with consecutive pids begin to search at rows of `ROW` ports that are far apart, so that clusters
that start at the same time try different ports."""


def free_ports(host: str, count: int, *, first: int | None = None) -> list[int]:
    """Return free ports. The search begins at `first`, or, if it is None, at a port that depends on this
    process.

    Raises:
        CommandError: too few ports are free.
    """
    rows = (END - FIRST) // ROW
    start = FIRST + os.getpid() * SCATTER % rows * ROW if first is None else first
    found: list[int] = []
    for port in filter(partial(is_free, host), _from(start)):
        found.append(port)
        if len(found) == count:
            return found
    raise CommandError(
        f"{host} has fewer than {count} free ports in {FIRST} to {END - 1}; stop processes that use them"
    )


def random_port() -> int:
    """Return a random port for the start of a search.

    A search from a fixed start could return a port that this process chose before and that the service has
    not bound yet.
    """
    return FIRST + secrets.randbelow(END - FIRST)


def is_free(host: str, port: int) -> bool:
    """Return whether the port is free: it is not in use and has no closing connections."""
    return _can_bind(host, port, again=False)


def is_listenable(host: str, port: int) -> bool:
    """Return whether no process listens on the port. Connections of an earlier listener may still be
    closing.
    """
    return _can_bind(host, port, again=True)


def _can_bind(host: str, port: int, *, again: bool) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if again:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError:
            return False
        return True


def _from(start: int) -> Iterator[int]:
    yield from range(start, END)
    yield from range(FIRST, start)
