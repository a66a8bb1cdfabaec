"""Counts of what groups of a broker do, by type, as Kafka's group coordinator counts it."""

from __future__ import annotations

from typing import Final

from ponor_runtime.telemetry import Counter, Telemetry

CLASSIC_TYPE: Final = "classic"
CONSUMER_TYPE: Final = "consumer"
SHARE_TYPE: Final = "share"
STREAMS_TYPE: Final = "streams"
GROUP_TYPES: Final = (CLASSIC_TYPE, CONSUMER_TYPE, SHARE_TYPE, STREAMS_TYPE)
"""Kafka's names of the types of groups."""
MIGRATED_TYPES: Final = (CLASSIC_TYPE, CONSUMER_TYPE)
"""Types to which a group with members may change."""


class GroupCounters:
    """The counters of one broker."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._rebalances: dict[str, Counter] = {
            each: telemetry.counter("ponor_group_rebalances_total", type=each) for each in GROUP_TYPES
        }
        self._migrations: dict[str, Counter] = {
            each: telemetry.counter("ponor_group_migrations_total", type=each) for each in MIGRATED_TYPES
        }

    def rebalanced(self, group_type: str, count: int = 1) -> None:
        """Count completed rebalances of a classic group, or raised epochs of other groups."""
        self._rebalances[group_type].add(count)

    def migrated(self, group_type: str) -> None:
        """Count a group with members that changed to a type."""
        self._migrations[group_type].add()
