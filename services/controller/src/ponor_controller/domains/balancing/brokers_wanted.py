"""The number of brokers that the present load requires, for autoscalers.

The number rises only to the minimum that was needed within the last `balance_scale_up_ms`: a broker that
starts or drains uses much CPU for a moment, and this must not make the autoscaler start another broker. It
falls only to the maximum that was needed within the last `balance_scale_down_ms`: a pause between two bursts
must not make the autoscaler stop a broker. An autoscaler therefore needs no stabilization window of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from ponor_controller.domains.balancing.cluster_load import BrokerStanding
from ponor_controller.domains.balancing.goals import Goal, share

SLOTS: Final = 60
"""Number of slots of a window. The wanted number changes at most one slot late."""


def load_of(broker: BrokerStanding, goals: Sequence[Goal]) -> float:
    """The utilization of a broker, 1 if full: the maximum of its CPU share and its share of each goal's
    capacity.
    """
    return max(broker.cpu, *(share(goal, goal.carried(broker)) for goal in goals))


def brokers_needed(brokers: Sequence[BrokerStanding], goals: Sequence[Goal], wanted_percent: float) -> int:
    """The smallest number of brokers, at least 1, that carry the load at `wanted_percent` of their capacity
    or less, if the load is even.
    """
    totals = [sum(share(goal, goal.carried(broker)) for broker in brokers) for goal in goals]
    totals.append(sum(broker.cpu for broker in brokers))
    return max(1, math.ceil(max(totals) * 100 / wanted_percent - 1e-9))


class _Window:
    """The minimum or maximum of the values within a sliding time window. The window moves by whole slots."""

    def __init__(self, window_ms: int, pick: Callable[[int, int], int]) -> None:
        self._slot_ns = max(1, window_ms * 1_000_000 // SLOTS)
        self._pick = pick
        self._slots: deque[tuple[int, int]] = deque(maxlen=SLOTS + 1)
        """(number of the slot, its minimum or maximum), oldest first."""

    def clear(self) -> None:
        self._slots.clear()

    def add(self, value: int, now_ns: int) -> int:
        """Add a value; returns the minimum or maximum of the window."""
        slot = now_ns // self._slot_ns
        if self._slots and self._slots[-1][0] == slot:
            value = self._pick(value, self._slots.pop()[1])
        self._slots.append((slot, value))
        while self._slots[0][0] < slot - SLOTS:
            self._slots.popleft()
        return reduce(self._pick, (each for _, each in self._slots))


class BrokersWanted:
    """Computes the wanted number of brokers from the numbers that were needed at each step."""

    def __init__(self, up_ms: int, down_ms: int) -> None:
        self._lasting = _Window(up_ms, min)
        self._needed = _Window(down_ms, max)
        self.count = 0
        """The wanted number of brokers; 0 before `begin`."""

    def begin(self, live: int, now_ns: int) -> None:
        """Leadership begins: assume that all present brokers were needed until now."""
        self._lasting.clear()
        self._needed.clear()
        self._lasting.add(1, now_ns)
        self.count = self._needed.add(max(1, live), now_ns)

    def need(self, brokers: int, now_ns: int) -> None:
        """Record the number of brokers that are needed now."""
        self.count = self._needed.add(self._lasting.add(brokers, now_ns), now_ns)
