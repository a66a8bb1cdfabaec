"""Free ports of this machine."""

from __future__ import annotations

import socket


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody listens on now; held open together so that all differ."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
