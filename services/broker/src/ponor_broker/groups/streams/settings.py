"""Settings of streams groups, as the state machine uses them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamsSettings:
    """Times and bounds.

    Attributes:
        initial_delay_ms: how long the first assignment of an empty group waits for more members.
        standby_replicas: number of standby tasks of each task with state.
        assigned_at_once_max: members and tasks of a group whose target an event computes itself.
        targets_per_part: members that one part of a target's installation visits.
    """

    session_timeout_ms: int
    assignment_interval_ms: int
    initial_delay_ms: int
    members_max: int
    standby_replicas: int
    assigned_at_once_max: int = 500
    targets_per_part: int = 200

    @property
    def configs(self) -> tuple[tuple[str, str], ...]:
        """What the assignor uses, as it is stored."""
        return (("num.standby.replicas", str(self.standby_replicas)),)
