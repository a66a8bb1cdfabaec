"""The part of a plan that concerns a consumer group with members: clients, settings, additional faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from ponor_broker.settings import BrokerSettings

from ponor_cluster_simulation.faults.fault import FaultKind
from ponor_cluster_simulation.faults.swarm import Machines, Schedule
from ponor_cluster_simulation.workload.shared_group import SESSION_TIMEOUT_MS

SHARE: Final = 0.4
"""Share of the seeds with a group."""
STATIC_SHARE: Final = 0.3
"""Share of the members with an instance id."""
CLASSIC_SHARES: Final = (0.0, 0.0, 0.4, 0.8)
"""Shares of the memberships that use the classic protocol."""
LINK_FAULTS: Final = (FaultKind.ABANDON, FaultKind.CLOG, FaultKind.CUT, FaultKind.DELAY, FaultKind.RESET)
LINK_FAULTS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The group of a run.

    Attributes:
        members: whether each member is static.
        classic_share: share of the memberships that use the classic protocol.
    """

    members: tuple[bool, ...] = ()
    classic_share: float = 0.0

    @property
    def clients(self) -> tuple[str, ...]:
        """Process names of the members."""
        return tuple(f"member-{number}" for number in range(len(self.members)))


NO_GROUP: Final = GroupPlan()


def draw_group(seed: int) -> GroupPlan:
    """Draw the group of a seed."""
    chance = random.Random(f"group {seed}")
    if chance.random() >= SHARE:
        return NO_GROUP
    members = tuple(chance.random() < STATIC_SHARE for _ in range(chance.randint(2, 4)))
    return GroupPlan(members, chance.choice(CLASSIC_SHARES))


def with_group_faults(seed: int, schedule: Schedule, machines: Machines, plan: GroupPlan) -> Schedule:
    """Add faults of the links between brokers and members."""
    links = Machines((), machines.brokers, (), plan.clients, has_bucket=False)
    chance = random.Random(f"links of members {seed}")
    kind = chance.choice(LINK_FAULTS)
    return schedule.with_more(chance, kind, links, chance.randint(0, LINK_FAULTS_MAX))


def with_short_sessions(settings: BrokerSettings) -> BrokerSettings:
    """Return settings with which groups rebalance within seconds."""
    return replace(
        settings,
        groups=replace(
            settings.groups,
            group_initial_rebalance_delay_ms=300,
            group_min_session_timeout_ms=SESSION_TIMEOUT_MS,
            group_consumer_session_timeout_ms=SESSION_TIMEOUT_MS,
            group_consumer_assignment_interval_ms=200,
        ),
    )
