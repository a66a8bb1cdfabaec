"""Parsing and formatting of HOST:PORT are inverse."""

from __future__ import annotations

import pytest
from ponor_runtime.host_port import join_host_port, split_host_port


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("broker:9092", "broker", 9092), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:65535", "::1", 65535)],
)
def test_host_and_port_round_trip(address: str, host: str, port: int) -> None:
    assert split_host_port(address) == (host, port)
    assert join_host_port(host, port) == address


@pytest.mark.parametrize(
    "address", ["", "broker", ":9092", "broker:", "broker:x", "broker:-1", "broker:65536", "::1:9092", "[]:1"]
)
def test_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_host_port(address)
