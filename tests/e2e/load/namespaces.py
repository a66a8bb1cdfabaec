"""Network namespaces on one bridge as test machines whose links can be cut. Needs root and iproute2.

Names contain the process id, so that concurrent runs do not collide. Everything is removed at the end, also
after a failure.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NETWORK: Final = "10.213"
"""Unrouted addresses; the third byte depends on the process id."""


def namespaces_are_allowed() -> bool:
    """Whether this process may create namespaces and links."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"pnrtry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made


class Machine:
    """One namespace with one address, connected to the bridge."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    def command(self, *words: str) -> list[str]:
        """Return a command that runs on this machine."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """Drop all traffic of the machine silently."""
        _ip("link", "set", f"{self.name}-b", "down")

    def heal(self) -> None:
        """Undo `cut`."""
        _ip("link", "set", f"{self.name}-b", "up")


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """Create `count` machines; the test's own process is on the bridge too and reaches all of them."""
    run = os.getpid() % 10_000
    subnet = f"{NETWORK}.{run % 250}"
    bridge = f"pnr{run}"
    made = [Machine(f"pnr{run}n{number}", f"{subnet}.{number + 1}") for number in range(count)]
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{subnet}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for machine in made:
            _connect(machine, bridge)
        yield made
    finally:
        for machine in made:
            for words in (("link", "delete", f"{machine.name}-b"), ("netns", "delete", machine.name)):
                with contextlib.suppress(subprocess.CalledProcessError):
                    _ip(*words)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", bridge)


def _connect(machine: Machine, bridge: str) -> None:
    outside, inside = f"{machine.name}-b", f"{machine.name}-i"
    _ip("netns", "add", machine.name)
    _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
    _ip("link", "set", inside, "netns", machine.name)
    _ip("link", "set", outside, "master", bridge)
    _ip("link", "set", outside, "up")
    for words in (
        ("addr", "add", f"{machine.address}/24", "dev", inside),
        ("link", "set", inside, "up"),
        ("link", "set", "lo", "up"),
    ):
        _ip("-n", machine.name, *words)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
