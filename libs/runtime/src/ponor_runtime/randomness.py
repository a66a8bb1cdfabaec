"""The randomness port: the only source of randomness for service logic."""

from __future__ import annotations

import uuid
from typing import Protocol


class Randomness(Protocol):
    """Randomness of one process; seeded in the simulator."""

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high)."""
        ...

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        ...

    def token(self, length: int) -> bytes:
        """Random bytes."""
        ...

    def uuid(self) -> uuid.UUID:
        """A version 4 UUID."""
        ...
