"""The state of the links between simulated processes: cut, clogged, lossy or slow.

A link models TCP. A lost frame is one that no retransmission delivers, so the connection ends and no later
frame arrives. The order within a connection never changes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TypeAlias

Direction: TypeAlias = tuple[str, str]
"""Source and destination process, by name."""


@dataclass(frozen=True, slots=True)
class DelayLaw:
    """Delays of frames in seconds: uniform, with a longer tail for some frames."""

    bounds_s: tuple[float, float] = (0.0001, 0.002)
    tail_share: float = 0.01
    tail_s: float = 0.05

    def draw(self, chance: random.Random) -> float:
        """Draw the delay of one frame, in seconds."""
        tail = chance.uniform(0, self.tail_s) if chance.random() < self.tail_share else 0.0
        low, high = self.bounds_s
        return (
            low + (high - low) * chance.random() + tail
        )  # the formula of `uniform`, without its call: this runs for every frame


@dataclass(slots=True)
class Links:
    """The faulty links at this moment. A scenario replaces the whole object to change them.

    Attributes:
        cuts: no frame arrives and no connection opens until the cut ends; then the frames sent in the
            meantime arrive.
        clogged_until_s: frames sent now arrive at this loop time at the earliest; new connections also wait
            until then.
        losses: share of frames that are lost; each lost frame ends its connection.
        delays: delay laws of the directions that do not use `NetworkHub.delay_law`.
    """

    cuts: dict[Direction, None] = field(default_factory=dict)
    clogged_until_s: dict[Direction, float] = field(default_factory=dict)
    losses: dict[Direction, float] = field(default_factory=dict)
    delays: dict[Direction, DelayLaw] = field(default_factory=dict)
