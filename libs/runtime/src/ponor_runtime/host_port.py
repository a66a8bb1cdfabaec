"""Addresses as people write them, HOST:PORT, where a host that is an IPv6 address stands in brackets: `[::1]:9092`."""

from __future__ import annotations

from typing import Final

PORT_MAX: Final = 65_535


def join_host_port(host: str, port: int) -> str:
    """HOST:PORT, with brackets where the host needs them."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def split_host_port(address: str) -> tuple[str, int]:
    """Host, without brackets, and port.

    Raises:
        ValueError: it is not HOST:PORT, or an IPv6 address without brackets.
    """
    host, colon, port = address.strip().rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if is_bracketed:
        host = host[1:-1]
    if not (colon and host and port.isdecimal() and int(port) <= PORT_MAX) or (
        ":" in host and not is_bracketed
    ):
        raise ValueError(f"{address!r} is not HOST:PORT; an IPv6 address stands in brackets: [::1]:9092")
    return host, int(port)
