"""Free ports of this machine, from a range that the system gives to nobody by itself.

A port of the system's own (ephemeral) range may become the near end of anybody's connection between this look and the service's bind, or while a service that listens on it restarts.
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
"""Below every system's ephemeral range: Linux begins at 32,768, others at 49,152."""
ROW: Final = 50
SCATTER: Final = 89
"""Neighbouring process ids begin in rows far from each other, so that clusters that are started together do not look at the same ports."""


def free_ports(host: str, count: int, *, first: int | None = None) -> list[int]:
    """Ports that nobody listens on now, from `first` on (None: from a place that depends on this process).

    Raises:
        CommandError: there are not so many.
    """
    rows = (END - FIRST) // ROW
    start = FIRST + os.getpid() * SCATTER % rows * ROW if first is None else first
    found: list[int] = []
    for port in filter(partial(is_free, host), _from(start)):
        found.append(port)
        if len(found) == count:
            return found
    raise CommandError(f"{host} has no {count} free ports of {FIRST} to {END - 1}; stop what uses them")


def anywhere() -> int:
    """A place to begin that nobody can foresee: for a process that has chosen ports before, some of which may be silent for a moment."""
    return FIRST + secrets.randbelow(END - FIRST)


def is_free(host: str, port: int) -> bool:
    """Whether nobody uses it now, nor did a moment ago."""
    return _can_bind(host, port, again=False)


def is_listenable(host: str, port: int) -> bool:
    """Whether nobody listens on it now; connections of a process that listened on it may still be closing."""
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
