"""The state of every way between two simulated processes: cut, clogged, lossy or slow.

What lives here: what holds of a direction at a moment. What it does to frames is `network`'s; when it changes, the scenario's. Streams are TCP's: a lost frame
is one that no retransmission saved, so nothing behind it arrives and the connection ends; order within a connection never breaks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TypeAlias

Direction: TypeAlias = tuple[str, str]
"""From one process to another, by name."""


@dataclass(frozen=True, slots=True)
class DelayLaw:
    """How long frames travel: uniform, and for some with a tail on top, in seconds."""

    bounds_s: tuple[float, float] = (0.0001, 0.002)
    tail_share: float = 0.01
    tail_s: float = 0.05

    def draw(self, chance: random.Random) -> float:
        """One frame's time, in seconds."""
        tail = chance.uniform(0, self.tail_s) if chance.random() < self.tail_share else 0.0
        low, high = self.bounds_s
        return low + (high - low) * chance.random() + tail  # as `uniform` has it: every frame comes by


@dataclass(slots=True)
class Links:
    """What is wrong between processes now. A scenario replaces the whole.

    Attributes:
        cuts: nothing arrives and nobody connects until this is over; then what was sent arrives.
        clogged_until_s: frames sent now arrive at this time at the earliest, and connecting takes as long; the loop's time.
        losses: share of frames that are lost, each with its connection.
        delays: where it is not the hub's own law.
    """

    cuts: dict[Direction, None] = field(default_factory=dict)
    clogged_until_s: dict[Direction, float] = field(default_factory=dict)
    losses: dict[Direction, float] = field(default_factory=dict)
    delays: dict[Direction, DelayLaw] = field(default_factory=dict)
