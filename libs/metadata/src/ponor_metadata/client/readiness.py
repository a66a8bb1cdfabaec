"""Readiness conditions of a node: the session with the leader is alive, and the image is current."""

from __future__ import annotations

from typing import Final

from ponor_runtime.health import Health

from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient

STALENESS_MS_MAX: Final = 3_000
"""Above this staleness a node is not ready. A working subscription sends a probe every 400 ms, and an
election takes one to two seconds."""


def require_session(health: Health, session: SessionClient) -> None:
    """Require that the leading controller has sent a frame recently."""

    def check() -> str:
        silence_ms = session.silence_ms
        if silence_ms is None:
            return "this node is not registered with a controller yet"
        if session.fenced.is_set():
            return "the controllers fenced this process"
        # The leader sends a frame at least every third of the timeout, and suspects this node after the whole
        # timeout.
        if silence_ms > session.session_timeout_ms // 2:
            return f"the leading controller has not been heard for {silence_ms} ms"
        return ""

    health.require("session", check)


def require_current_image(health: Health, subscription: SubscriptionClient) -> None:
    """Require that the image contains what was committed up to a few seconds ago."""

    def check() -> str:
        staleness_ms = subscription.staleness_ms
        if staleness_ms is None:
            return "no controller has reported its commit index yet"
        return f"metadata are {staleness_ms} ms old" if staleness_ms > STALENESS_MS_MAX else ""

    health.require("metadata", check)
