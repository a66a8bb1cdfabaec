"""Settings of consumer groups, as the state machine uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ponor_broker.groups.assignors.assignment_input import Assignor


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Times, bounds and assignors. The first assignor is the default.

    Attributes:
        assigned_at_once_max: members and partitions of a group whose target an event computes itself.
        matched_at_once_max: comparisons of an expression with a name that an event makes itself.
        targets_per_part: members that one part of a target's installation visits.
    """

    session_timeout_ms: int
    assignment_interval_ms: int
    members_max: int
    assignors: Mapping[str, Assignor]
    assigned_at_once_max: int = 1_000
    matched_at_once_max: int = 500
    targets_per_part: int = 200

    @property
    def default_assignor(self) -> str:
        """Name of the assignor for members without a preference."""
        return next(iter(self.assignors))
