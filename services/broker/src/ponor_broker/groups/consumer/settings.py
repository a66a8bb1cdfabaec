"""Settings of consumer groups, as the state machine uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ponor_broker.groups.assignors.assignment_input import Assignor


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Times, bounds and assignors. The first assignor is the default."""

    session_timeout_ms: int
    assignment_interval_ms: int
    members_max: int
    assignors: Mapping[str, Assignor]

    @property
    def default_assignor(self) -> str:
        """Name of the assignor for members without a preference."""
        return next(iter(self.assignors))
