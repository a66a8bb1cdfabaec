"""Settings of the delivery of share groups, and the values in force for one group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from ponor_runtime.settings import setting

from ponor_broker.share_partitions.share_partition import DeliveryRules

GroupConfigs: TypeAlias = Callable[[str], Mapping[str, str]]
"""Returns the dynamic configs of a group, which were checked when they were set."""

_DURATION: Final = "by_duration:"
_DAY_MS: Final = 86_400_000
_UNIT_MS: Final = {"D": _DAY_MS, "H": 3_600_000, "M": 60_000, "S": 1_000}


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
        "members get no further records of partitions that the group does not use yet.",
    )


class ResetPoint(Enum):
    """Where a group without an offset begins."""

    EARLIEST = "earliest"
    LATEST = "latest"
    BY_DURATION = "by_duration"


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
        is_by_duration = reset.startswith(_DURATION)
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
            reset=ResetPoint.BY_DURATION if is_by_duration else ResetPoint(reset),
            reset_ms=duration_ms(reset.removeprefix(_DURATION)) if is_by_duration else 0,
            may_renew=own.get("share.renew.acknowledge.enable", "true") == "true",
        )


def duration_ms(text: str) -> int:
    """Return an ISO 8601 duration of days, hours, minutes and seconds, for example P1DT12H, in ms.

    Raises:
        ValueError: the text has another form.
    """
    days, _, times = text.upper().removeprefix("P").partition("T")
    total_ms = 0.0
    for part, units in ((days, "D"), (times, "HMS")):
        value = ""
        for letter in part:
            if letter in units and value:
                total_ms += float(value) * _UNIT_MS[letter]
                value = ""
            else:
                value += letter
        if value:
            raise ValueError(f"{text!r} is no duration; an example is P1DT12H")
    return int(total_ms)
