"""Settings of the delivery of share groups, and the values in force for one group."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ponor_kafka.configs.value_rules import reset_duration_ms
from ponor_runtime.settings import setting

from ponor_broker.coordination.ports import GroupConfigs


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Defaults and bounds of share groups at the leaders of partitions."""

    group_share_record_lock_duration_ms: int = setting(
        30_000,
        within=(1_000, 3_600_000),
        doc="Kafka's group.share.record.lock.duration.ms: how long a member may hold an acquired record.",
    )
    group_share_delivery_count_limit: int = setting(
        5,
        within=(2, 10),
        unit="deliveries",
        doc="Kafka's group.share.delivery.count.limit: deliveries of a record before it is archived.",
    )
    group_share_partition_max_record_locks: int = setting(
        2_000,
        within=(100, 10_000),
        unit="records",
        doc="Kafka's group.share.partition.max.record.locks: records in flight of one share partition.",
    )
    group_share_sessions_max: int = setting(
        2_000,
        within=(1, 1_000_000),
        unit="sessions",
        doc="Kafka's group.share.max.share.sessions: share sessions at this broker.",
    )
    share_memory_bytes_max: int = setting(
        256 << 20,
        within=(1 << 20, 1 << 40),
        doc="Memory for the records in flight of all share partitions at this broker. Above this bound, "
        "members get only records that are in flight already.",
    )


class ResetPoint(Enum):
    """Where a group without an offset begins."""

    EARLIEST = "earliest"
    LATEST = "latest"
    BY_DURATION = "by_duration"


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """The settings of the group that delivery depends on.

    Attributes:
        lock_ms: duration of an acquisition lock.
        deliveries_max: a record is archived when it was delivered this often and becomes available again.
        in_flight_max: offsets from the start to the end of the share partition.
    """

    lock_ms: int
    deliveries_max: int
    in_flight_max: int


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The values in force for one group.

    Attributes:
        delivery: lock duration and limits.
        is_committed: whether the members read with `read_committed`.
        reset: where the group begins.
        reset_ms: the duration of BY_DURATION.
        may_renew: whether members may renew locks.
    """

    delivery: DeliveryRules
    is_committed: bool = False
    reset: ResetPoint = ResetPoint.LATEST
    reset_ms: int = 0
    may_renew: bool = True


class ShareRules:
    """Combines the broker's settings with the dynamic configs of groups, which are read at every call."""

    def __init__(self, settings: ShareSettings, group_configs: GroupConfigs) -> None:
        self._settings = settings
        self._group_configs = group_configs

    def of(self, group_id: str) -> GroupRules:
        """Return the values for a group."""
        settings, own = self._settings, self._group_configs(group_id)

        def number(name: str, default: int) -> int:
            return int(own.get(name, default))

        reset = own.get("share.auto.offset.reset", ResetPoint.LATEST.value)
        reset_ms = reset_duration_ms(reset)
        return GroupRules(
            DeliveryRules(
                lock_ms=number("share.record.lock.duration.ms", settings.group_share_record_lock_duration_ms),
                deliveries_max=number(
                    "share.delivery.count.limit", settings.group_share_delivery_count_limit
                ),
                in_flight_max=number(
                    "share.partition.max.record.locks", settings.group_share_partition_max_record_locks
                ),
            ),
            is_committed=own.get("share.isolation.level") == "read_committed",
            reset=ResetPoint(reset) if reset_ms is None else ResetPoint.BY_DURATION,
            reset_ms=reset_ms or 0,
            may_renew=own.get("share.renew.acknowledge.enable", "true") == "true",
        )
