"""Settings of the group coordinator, with Kafka's defaults where Kafka has the setting."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Bounds and delays of groups. Each `doc` names Kafka's setting, if there is one."""

    offsets_topic_partitions: int = setting(
        50,
        minimum=1,
        maximum=10_000,
        doc="offsets.topic.num.partitions; fixed once __consumer_offsets exists",
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000,
        minimum=0,
        maximum=600_000,
        unit="ms",
        doc="group.initial.rebalance.delay.ms: how long the first join of an empty group waits for others",
    )
    group_min_session_timeout_ms: int = setting(
        6_000, minimum=1, maximum=1_800_000, unit="ms", doc="group.min.session.timeout.ms"
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, minimum=1, maximum=2_147_483_647, unit="ms", doc="group.max.session.timeout.ms"
    )
    group_new_member_join_timeout_ms: int = setting(
        300_000,
        minimum=1,
        maximum=1_800_000,
        unit="ms",
        doc="how long a member that has never finished a join may wait in it; Kafka fixes it at 5 minutes",
    )
    group_members_max: int = setting(
        10_000,
        minimum=1,
        maximum=1_000_000,
        doc="group.max.size; members that were handed an id but have not joined count too",
    )
    groups_max: int = setting(
        100_000,
        minimum=1,
        maximum=10_000_000,
        doc="groups held by this broker; beyond it a new group gets COORDINATOR_NOT_AVAILABLE",
    )
    groups_memory_bytes_max: int = setting(
        512 << 20,
        minimum=1 << 16,
        maximum=1 << 40,
        unit="bytes",
        doc="what groups, members and committed offsets of this broker may take in memory; beyond it new groups, members and offsets get "
        "COORDINATOR_NOT_AVAILABLE, while those that are held go on",
    )
    coordinator_batch_bytes_max: int = setting(
        16 << 20,
        minimum=1 << 10,
        maximum=64 << 20,
        unit="bytes",
        doc="one write: a group with subscriptions and assignments of all members, or the offsets of one commit",
    )
    offset_metadata_bytes_max: int = setting(
        4_096,
        minimum=0,
        maximum=32_767,
        unit="bytes",
        doc="offset.metadata.max.bytes: the text that a client may keep with an offset, in UTF-16 units as Kafka counts",
    )
    offsets_load_bytes_max: int = setting(
        5 << 20,
        minimum=1 << 10,
        maximum=64 << 20,
        unit="bytes",
        doc="offsets.load.buffer.size: read at a time while a partition is loaded",
    )
    offsets_rewrite_log_bytes_min: int = setting(
        256 << 10,
        minimum=1 << 10,
        maximum=1 << 40,
        unit="bytes",
        doc="a partition of __consumer_offsets is not written anew while its log is shorter",
    )
    offsets_rewrite_ratio: int = setting(
        4,
        minimum=2,
        maximum=1_000,
        doc="a partition of __consumer_offsets is written anew when its log is so many times as long as what was written anew the last time",
    )
    offsets_retention_ms: int = setting(
        604_800_000,
        minimum=1,
        maximum=1 << 62,
        unit="ms",
        doc="offsets.retention.minutes: how long offsets are kept that no member of a group reads from",
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, minimum=1, maximum=86_400_000, unit="ms", doc="offsets.retention.check.interval.ms"
    )
    coordinator_writes_in_flight_max: int = setting(
        10_000,
        minimum=1,
        maximum=1_000_000,
        doc="records batches of one partition not yet durable; beyond it commits get COORDINATOR_NOT_AVAILABLE",
    )
    coordinator_wait_ms_max: int = setting(
        2_000,
        minimum=0,
        maximum=60_000,
        unit="ms",
        doc="longest wait of a request until its group's partition of __consumer_offsets is made, opened and loaded here; then COORDINATOR_NOT_AVAILABLE or "
        "COORDINATOR_LOAD_IN_PROGRESS; 0: none waits",
    )
    coordinator_write_timeout_ms: int = setting(
        5_000,
        minimum=1,
        maximum=300_000,
        unit="ms",
        doc="offsets.commit.timeout.ms: an answer COORDINATOR_NOT_AVAILABLE after it; the write itself may still succeed",
    )
