"""The part of a plan that concerns groups with members: clients, settings, additional faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from ponor_broker.settings import BrokerSettings
from s3stream.settings import KIB

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


@dataclass(frozen=True, slots=True)
class SharePlan:
    """The share group of a run.

    Attributes:
        members: number of members.
        deliveries_max: delivery count at which a record is archived.
        lock_ms: duration of an acquisition lock.
        updates_per_snapshot: records of a share partition's state before the next snapshot.
        rewrite_log_bytes_min: length of the state's log from which it is rewritten.
    """

    members: int = 0
    deliveries_max: int = 2
    lock_ms: int = 1_500
    updates_per_snapshot: int = 0
    rewrite_log_bytes_min: int = KIB

    @property
    def clients(self) -> tuple[str, ...]:
        """Process names of the members."""
        return tuple(f"share-member-{number}" for number in range(self.members))


@dataclass(frozen=True, slots=True)
class StreamsPlan:
    """The streams group of a run; `members` is their number."""

    members: int = 0

    @property
    def clients(self) -> tuple[str, ...]:
        """Process names of the members."""
        return tuple(f"streams-member-{number}" for number in range(self.members))


NO_GROUP: Final = GroupPlan()
NO_SHARE_GROUP: Final = SharePlan()
NO_STREAMS_GROUP: Final = StreamsPlan()


def draw_group(seed: int) -> GroupPlan:
    """Draw the group of a seed."""
    chance = random.Random(f"group {seed}")
    if chance.random() >= SHARE:
        return NO_GROUP
    members = tuple(chance.random() < STATIC_SHARE for _ in range(chance.randint(2, 4)))
    return GroupPlan(members, chance.choice(CLASSIC_SHARES))


def draw_share_group(seed: int) -> SharePlan:
    """Draw the share group of a seed."""
    chance = random.Random(f"share group {seed}")
    if chance.random() >= SHARE:
        return NO_SHARE_GROUP
    return SharePlan(
        members=chance.randint(2, 4),
        deliveries_max=chance.choice((2, 3, 5, 10)),
        lock_ms=chance.choice((1_000, 1_500, 3_000)),
        updates_per_snapshot=chance.choice((0, 3, 10, 500)),
        rewrite_log_bytes_min=chance.choice((1, 4, 256)) * KIB,
    )


def draw_streams_group(seed: int) -> StreamsPlan:
    """Draw the streams group of a seed."""
    chance = random.Random(f"streams group {seed}")
    return StreamsPlan(chance.randint(2, 4)) if chance.random() < SHARE else NO_STREAMS_GROUP


def with_group_faults(
    seed: int, schedule: Schedule, machines: Machines, clients: tuple[str, ...], what: str = "members"
) -> Schedule:
    """Add faults of the links between brokers and members."""
    links = Machines((), machines.brokers, (), clients, has_bucket=False)
    chance = random.Random(f"links of {what} {seed}")
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


def with_streams_settings(settings: BrokerSettings) -> BrokerSettings:
    """Return settings with which streams groups assign tasks within seconds."""
    return replace(
        settings,
        groups=replace(
            settings.groups,
            group_streams_session_timeout_ms=SESSION_TIMEOUT_MS,
            group_streams_initial_rebalance_delay_ms=300,
            group_streams_assignment_interval_ms=200,
        ),
    )


def with_share_settings(settings: BrokerSettings, plan: SharePlan, state_partitions: int) -> BrokerSettings:
    """Return settings with which locks end, and logs of states are rewritten, within seconds."""
    return replace(
        settings,
        groups=replace(
            settings.groups,
            group_share_session_timeout_ms=SESSION_TIMEOUT_MS,
            group_share_assignment_interval_ms=200,
        ),
        share=replace(
            settings.share,
            group_share_record_lock_duration_ms=plan.lock_ms,
            group_share_delivery_count_limit=plan.deliveries_max,
            group_share_partition_max_record_locks=100,
        ),
        share_state=replace(
            settings.share_state,
            share_state_topic_partitions=state_partitions,
            share_state_updates_per_snapshot=plan.updates_per_snapshot,
            share_state_rewrite_log_bytes_min=plan.rewrite_log_bytes_min,
            share_state_rewrite_ratio=2,
        ),
    )
