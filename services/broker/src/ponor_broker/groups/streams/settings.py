"""Settings of streams groups, as the state machine uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ponor_broker.groups.consumer.settings import no_configs


@dataclass(frozen=True, slots=True)
class StreamsSettings:
    """Times and bounds.

    Attributes:
        own: returns the group's dynamic configs; they are read at every use.
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
    own: Callable[[], Mapping[str, str]] = no_configs

    @property
    def session_timeout_in_force_ms(self) -> int:
        """The group's own session timeout, or the broker's."""
        return int(self.own().get("streams.session.timeout.ms", self.session_timeout_ms))

    @property
    def assignment_interval_in_force_ms(self) -> int:
        """The group's own pause between assignments, or the broker's."""
        return int(self.own().get("streams.assignment.interval.ms", self.assignment_interval_ms))

    @property
    def initial_delay_in_force_ms(self) -> int:
        """The group's own delay of the first assignment, or the broker's."""
        return int(self.own().get("streams.initial.rebalance.delay.ms", self.initial_delay_ms))

    @property
    def standby_replicas_in_force(self) -> int:
        """The group's own number of standby tasks, or the broker's."""
        return int(self.own().get("streams.num.standby.replicas", self.standby_replicas))

    @property
    def configs(self) -> tuple[tuple[str, str], ...]:
        """What the assignor uses, as it is stored."""
        return (("num.standby.replicas", str(self.standby_replicas_in_force)),)
