"""Parsing and formatting of HOST:PORT. An IPv6 address needs brackets: `[::1]:9092`."""

from __future__ import annotations

from typing import Final

PORT_MAX: Final = 65_535
HOST_CHARACTERS_MAX: Final = 255
"""Maximum length of a domain name, including the dots."""


def join_host_port(host: str, port: int) -> str:
    """Format HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def split_host_port(address: str) -> tuple[str, int]:
    """Parse HOST:PORT into host, without brackets, and port.

    Raises:
        ValueError: not HOST:PORT, or an IPv6 address without brackets.
    """
    host, colon, port = address.strip().rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if is_bracketed:
        host = host[1:-1]
    if not (colon and host and port.isdecimal() and int(port) <= PORT_MAX) or (
        ":" in host and not is_bracketed
    ):
        raise ValueError(f"{address!r} is not HOST:PORT; an IPv6 address needs brackets: [::1]:9092")
    return host, int(port)
