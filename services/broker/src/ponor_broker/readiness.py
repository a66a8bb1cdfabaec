"""When a broker is ready, beyond its conversations with the controllers: it may serve what it leads, and does.

A single partition that cannot be opened does not make a broker unready: it would leave the bootstrap service with all that it serves.
"""

from __future__ import annotations

from collections.abc import Callable

from ponor_runtime.health import Health


def require_serving(health: Health, led: Callable[[], int], opened: Callable[[], int]) -> None:
    """Ready unless the broker leads partitions and has opened none.

    Args:
        health: of the process.
        led: how many partitions it leads.
        opened: how many of them it has opened.
    """

    def check() -> str:
        count = led()
        return (
            f"none of the {count} partitions that this broker leads is open" if count and not opened() else ""
        )

    health.require("partitions", check)
