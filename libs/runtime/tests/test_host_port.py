"""Addresses: what is split is joined to the same text."""

from __future__ import annotations

import pytest
from ponor_runtime.host_port import join_host_port, split_host_port


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("broker:9092", "broker", 9092), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:65535", "::1", 65535)],
)
def test_a_host_and_a_port(address: str, host: str, port: int) -> None:
    assert split_host_port(address) == (host, port)
    assert join_host_port(host, port) == address


@pytest.mark.parametrize(
    "address", ["", "broker", ":9092", "broker:", "broker:x", "broker:-1", "broker:65536", "::1:9092", "[]:1"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_host_port(address)
