"""The state that the members of the group in one run share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ponor_cluster_simulation.histories.groups import GroupHistory

SESSION_TIMEOUT_MS: Final = 3_000
REBALANCE_TIMEOUT_MS: Final = 4_000
"""Longer than the session timeout, so that a silent member is removed when its session ends."""
FASTEST_CLOCK: Final = 1.1
"""A coordinator's clock may be this many times as fast as the members' clock."""
ANSWER_S_MAX: Final = 1.5
JOIN_S_MAX: Final = 6.0
"""Longer than a rebalance: JoinGroup is answered when it completes."""
STALE_S: Final = 1.5
"""Time for which a replaced coordinator may answer: two thirds of the brokers' session timeout, by its own
clock (`ponor_broker/serving.py`).
"""
SAFE_S: Final = SESSION_TIMEOUT_MS / 1000 / FASTEST_CLOCK - STALE_S
"""No other member may get a member's partitions for this time after the member sent a request that was
answered: its session lasts, even if a replaced coordinator sent the answer.
"""


@dataclass(slots=True)
class SharedGroup:
    """One group that reads one topic.

    Attributes:
        classic_share: share of the memberships that use the classic protocol.
        is_calm: the faults are over: no member leaves any more.
        is_over: everything is judged: the members leave.
    """

    group: str
    topic: str
    partitions: int
    bootstrap: Sequence[str]
    pause_s_max: float
    classic_share: float
    history: GroupHistory = field(default_factory=lambda: GroupHistory(STALE_S))
    states: Counter[str] = field(default_factory=Counter)
    is_calm: bool = False
    is_over: bool = False
