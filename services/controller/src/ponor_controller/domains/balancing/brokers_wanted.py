"""How many brokers the present load wants: a number that an autoscaler can follow as it is.

What lives here: the count and its hysteresis. It rises to what was needed at least for all of the last `balance_scale_up_ms`, because a broker that starts or
drains uses its processor for a moment, and must not call for another one by that. It falls to what was needed at most within the last
`balance_scale_down_ms`, so that a pause between two bursts stops no broker. Whoever acts on it needs no window of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from ponor_controller.domains.balancing.goals import Goal, share
from ponor_controller.domains.balancing.picture import BrokerStanding

SLOTS: Final = 60
"""A window is remembered in so many pieces: the count changes at most one piece late."""


def load_of(broker: BrokerStanding, goals: Sequence[Goal]) -> float:
    """How full a broker is: the largest of its shares, that of its processor among them; 1 is full."""
    return max(broker.cpu, *(share(goal, goal.carried(broker)) for goal in goals))


def brokers_needed(brokers: Sequence[BrokerStanding], goals: Sequence[Goal], wanted_percent: float) -> int:
    """The smallest number of brokers that stay below so many percent, if the load is even; at least 1."""
    totals = [sum(share(goal, goal.carried(broker)) for broker in brokers) for goal in goals]
    totals.append(sum(broker.cpu for broker in brokers))
    return max(1, math.ceil(max(totals) * 100 / wanted_percent - 1e-9))


class _Window:
    """The least or the most of what was said within a time. What is older goes by whole slots."""

    def __init__(self, window_ms: int, pick: Callable[[int, int], int]) -> None:
        self._slot_ns = max(1, window_ms * 1_000_000 // SLOTS)
        self._pick = pick
        self._slots: deque[tuple[int, int]] = deque(maxlen=SLOTS + 1)
        """(number of the slot, what was picked of it), oldest first."""

    def clear(self) -> None:
        self._slots.clear()

    def add(self, value: int, now_ns: int) -> int:
        """A value of now; what is picked of all."""
        slot = now_ns // self._slot_ns
        if self._slots and self._slots[-1][0] == slot:
            value = self._pick(value, self._slots.pop()[1])
        self._slots.append((slot, value))
        while self._slots[0][0] < slot - SLOTS:
            self._slots.popleft()
        return reduce(self._pick, (each for _, each in self._slots))


class BrokersWanted:
    """The number, from what is needed at every look."""

    def __init__(self, up_ms: int, down_ms: int) -> None:
        self._lasting = _Window(up_ms, min)
        self._needed = _Window(down_ms, max)
        self.count = 0
        """The present number; 0 before `begin`."""

    def begin(self, live: int, now_ns: int) -> None:
        """This controller begins to lead: what was needed before is not known, so the brokers that are there were."""
        self._lasting.clear()
        self._needed.clear()
        self._lasting.add(1, now_ns)
        self.count = self._needed.add(max(1, live), now_ns)

    def need(self, brokers: int, now_ns: int) -> None:
        """So many are needed now."""
        self.count = self._needed.add(self._lasting.add(brokers, now_ns), now_ns)
