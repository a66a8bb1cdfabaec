"""Planted bug: observed time goes on while the process does not run, and nobody has a full session timeout afterwards."""

from __future__ import annotations

import pytest
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_runtime.observer_clock import ObserverClock


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def monotonic_ns(self: ObserverClock) -> int:
        return self._clock.monotonic_ns()

    def never(self: NodeActivity, now_ns: int, window_ns: int | None = None) -> int | None:
        return None

    monkeypatch.setattr(ObserverClock, "monotonic_ns", monotonic_ns)
    monkeypatch.setattr(NodeActivity, "_most_silent_since", never)
