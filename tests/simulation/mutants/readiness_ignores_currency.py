"""Planted bug: a broker that has heard of no commit for long is ready all the same."""

from __future__ import annotations

import pytest
from ponor_broker import node
from ponor_metadata.subscription import SubscriptionClient
from ponor_runtime.health import Health


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def require_current_image(health: Health, subscription: SubscriptionClient) -> None:
        health.require("metadata", lambda: "" if subscription.staleness_ms is not None else "never")

    monkeypatch.setattr(node, "require_current_image", require_current_image)
