"""Settings of consumer groups, as the state machine uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ponor_broker.groups.assignors.assignment_input import Assignor


class MigrationPolicy(StrEnum):
    """Which groups with members may change their type: Kafka's group.consumer.migration.policy."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group becomes a consumer group when the first member with heartbeats joins."""
        return self in {self.UPGRADE, self.BIDIRECTIONAL}

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group becomes a classic group when only classic members are left."""
        return self in {self.DOWNGRADE, self.BIDIRECTIONAL}


def no_configs() -> Mapping[str, str]:
    """Return no dynamic configs."""
    return {}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Times, bounds and assignors. The first assignor is the default.

    Attributes:
        kind: the first word of the names of the group's configs.
        configs: returns the group's dynamic configs; they are read at every use.
        migrated_members_max: members of a group that changes its type.
        assigned_at_once_max: members and partitions of a group whose target an event computes itself.
        matched_at_once_max: comparisons of an expression with a name that an event makes itself.
        targets_per_part: members that one part of a target's installation visits.
    """

    session_timeout_ms: int
    assignment_interval_ms: int
    members_max: int
    assignors: Mapping[str, Assignor]
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    migrated_members_max: int = 200
    assigned_at_once_max: int = 1_000
    matched_at_once_max: int = 500
    targets_per_part: int = 200
    kind: str = "consumer"
    configs: Callable[[], Mapping[str, str]] = no_configs

    @property
    def session_timeout_in_force_ms(self) -> int:
        """The group's own session timeout, or the broker's."""
        return int(self.configs().get(f"{self.kind}.session.timeout.ms", self.session_timeout_ms))

    @property
    def assignment_interval_in_force_ms(self) -> int:
        """The group's own pause between assignments, or the broker's."""
        return int(self.configs().get(f"{self.kind}.assignment.interval.ms", self.assignment_interval_ms))

    @property
    def default_assignor(self) -> str:
        """Name of the assignor for members without a preference."""
        return next(iter(self.assignors))
