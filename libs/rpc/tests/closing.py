"""Frames sent before a close reach the peer, even on a slow machine."""

from __future__ import annotations

import pytest
from ponor_rpc import frame_stream, grpc_network

PATIENCE_SECONDS = 90.0
"""Only a hang takes longer."""


def give_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the limits: a close waits for its last frames and a listener for its handlers, however busy the
    machine is."""
    for module in (frame_stream, grpc_network):
        monkeypatch.setattr(module, "CLOSE_GRACE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(grpc_network, "HANDLER_STOP_SECONDS", PATIENCE_SECONDS)
