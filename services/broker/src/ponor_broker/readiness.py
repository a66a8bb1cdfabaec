"""Readiness of a broker beyond its sessions with the controllers."""

from __future__ import annotations

from collections.abc import Callable

from ponor_runtime.health import Health


def require_serving(health: Health, led: Callable[[], int], opened: Callable[[], int]) -> None:
    """Report the broker as not ready while it leads partitions and has opened none.

    A single partition that cannot be opened does not make a broker unready: that would remove the
    broker, with all partitions that it serves, from the bootstrap service.

    Args:
        health: of the process.
        led: number of partitions that the broker leads.
        opened: number of them that are open.
    """

    def check() -> str:
        count = led()
        return (
            f"none of the {count} partitions that this broker leads is open" if count and not opened() else ""
        )

    health.require("partitions", check)
