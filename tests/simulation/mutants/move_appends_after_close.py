"""Planted bug: a partition that moves goes on taking appends, also while its streams are being closed."""

from __future__ import annotations

import pytest
from ponor_broker.partitions.service_state import ServiceState
from s3stream.ports import StreamState
from s3stream.stream import Stream


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def seal(self: ServiceState) -> None:
        self.is_sealed = True

    def hold(self: ServiceState) -> None:
        self.is_held = self.refuses_reads = True

    def end(self: Stream) -> StreamState:
        state = self._state
        return StreamState(state.stream_id, state.epoch, state.start_offset, state.committed_offset)

    monkeypatch.setattr(ServiceState, "seal", seal)
    monkeypatch.setattr(ServiceState, "hold", hold)
    monkeypatch.setattr(Stream, "end", end)
    monkeypatch.setattr(Stream, "refuse_appends", lambda _: None)
