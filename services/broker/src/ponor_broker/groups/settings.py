"""Settings of the group coordinator, with Kafka's defaults where Kafka has the setting."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting

from ponor_broker.groups.assignors.assignment_input import Assignor
from ponor_broker.groups.assignors.range import RangeAssignor
from ponor_broker.groups.assignors.uniform import UniformAssignor
from ponor_broker.groups.consumer.settings import ConsumerSettings, MigrationPolicy
from ponor_broker.groups.streams.settings import StreamsSettings


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Bounds and delays of groups. Each `doc` names Kafka's setting, if there is one."""

    offsets_topic_partitions: int = setting(
        50,
        within=(1, 1_000),
        doc="Kafka's offsets.topic.num.partitions. It has no effect after __consumer_offsets was created.",
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000,
        within=(0, 600_000),
        doc="Kafka's group.initial.rebalance.delay.ms: how long the first rebalance of an empty "
        "group waits for more members.",
    )
    group_min_session_timeout_ms: int = setting(
        6_000,
        within=(1, 1_800_000),
        doc="Kafka's group.min.session.timeout.ms: shortest session timeout that a member may request.",
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000,
        within=(1, 2_147_483_647),
        doc="Kafka's group.max.session.timeout.ms: longest session timeout that a member may request.",
    )
    group_new_member_join_timeout_ms: int = setting(
        300_000,
        within=(1, 1_800_000),
        doc="How long a new member may wait in its first join. Kafka's fixed value is 5 minutes.",
    )
    group_members_max: int = setting(
        10_000,
        within=(1, 1_000_000),
        doc="Kafka's group.max.size: members of one group, including those that have an id and "
        "have not joined yet.",
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000,
        within=(1, 1_800_000),
        doc="Kafka's group.consumer.session.timeout.ms: a member of a consumer group that sends no "
        "heartbeat for this time is removed.",
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000,
        within=(1, 600_000),
        doc="Kafka's group.consumer.heartbeat.interval.ms: interval at which members of consumer groups "
        "send heartbeats.",
    )
    group_consumer_assignment_interval_ms: int = setting(
        1_000,
        within=(0, 15_000),
        doc="Kafka's group.consumer.assignment.interval.ms: least time between two computations of a "
        "consumer group's target assignment.",
    )
    group_consumer_members_max: int = setting(
        100_000,
        within=(1, 2_147_483_647),
        doc="Kafka's group.consumer.max.size: members of one consumer group.",
    )
    group_consumer_assignors: str = setting(
        "uniform,range",
        choices=("uniform,range", "range,uniform", "uniform", "range"),
        doc="Kafka's group.consumer.assignors: assignors of consumer groups. The first one is the default.",
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
        doc="Kafka's group.consumer.migration.policy: which groups with members may change between the "
        "classic and the consumer protocol.",
    )
    group_migration_members_max: int = setting(
        200,
        within=(1, 100_000),
        doc="Members of a group that changes between the classic and the consumer protocol. The change "
        "takes one turn of the event loop, with about 0.1 ms for each member. A larger group changes only "
        "while it is empty.",
    )
    group_share_session_timeout_ms: int = setting(
        45_000,
        within=(1, 1_800_000),
        doc="Kafka's group.share.session.timeout.ms: a member of a share group that sends no heartbeat for "
        "this time is removed.",
    )
    group_share_heartbeat_interval_ms: int = setting(
        5_000,
        within=(1, 600_000),
        doc="Kafka's group.share.heartbeat.interval.ms: interval at which members of share groups send "
        "heartbeats.",
    )
    group_share_assignment_interval_ms: int = setting(
        1_000,
        within=(0, 15_000),
        doc="Kafka's group.share.assignment.interval.ms: least time between two computations of a share "
        "group's target assignment.",
    )
    group_share_members_max: int = setting(
        200,
        within=(1, 1_000),
        doc="Kafka's group.share.max.size: members of one share group.",
    )
    group_streams_session_timeout_ms: int = setting(
        45_000,
        within=(1, 1_800_000),
        doc="Kafka's group.streams.session.timeout.ms: a member of a streams group that sends no heartbeat "
        "for this time is removed.",
    )
    group_streams_heartbeat_interval_ms: int = setting(
        5_000,
        within=(1, 600_000),
        doc="Kafka's group.streams.heartbeat.interval.ms: interval at which members of streams groups send "
        "heartbeats.",
    )
    group_streams_initial_rebalance_delay_ms: int = setting(
        3_000,
        within=(0, 600_000),
        doc="Kafka's group.streams.initial.rebalance.delay.ms: how long the first assignment of an empty "
        "streams group waits for more members.",
    )
    group_streams_assignment_interval_ms: int = setting(
        1_000,
        within=(0, 15_000),
        doc="Kafka's group.streams.assignment.interval.ms: least time between two computations of a streams "
        "group's target assignment.",
    )
    group_streams_members_max: int = setting(
        2_147_483_647,
        within=(1, 2_147_483_647),
        doc="Kafka's group.streams.max.size: members of one streams group.",
    )
    group_streams_standby_replicas: int = setting(
        0,
        within=(0, 2),
        doc="Kafka's group.streams.num.standby.replicas: standby tasks of each task with state.",
    )
    groups_max: int = setting(
        100_000,
        within=(1, 10_000_000),
        doc="Groups that this broker coordinates. Further groups get COORDINATOR_NOT_AVAILABLE.",
    )
    groups_memory_bytes_max: int = setting(
        512 << 20,
        within=(1 << 16, 1 << 40),
        doc="Memory for the groups, members and committed offsets of this broker. Above this "
        "bound, new groups, members and offsets get COORDINATOR_NOT_AVAILABLE; existing ones continue. "
        "A member of a consumer group that asks for a larger subscription gets GROUP_MAX_SIZE_REACHED, and "
        "larger target assignments wait.",
    )
    coordinator_batch_bytes_max: int = setting(
        16 << 20,
        within=(1 << 10, 64 << 20),
        doc="Largest write of the group coordinator: a group with the subscriptions and "
        "assignments of all members, or the offsets of one commit.",
    )
    offset_metadata_bytes_max: int = setting(
        4_096,
        within=(0, 32_767),
        doc="Kafka's offset.metadata.max.bytes: longest text stored with a committed offset, in "
        "UTF-16 code units as in Kafka.",
    )
    offsets_load_bytes_max: int = setting(
        5 << 20,
        within=(1 << 10, 64 << 20),
        doc="Kafka's offsets.load.buffer.size: bytes read at a time while a partition of "
        "__consumer_offsets is loaded.",
    )
    offsets_rewrite_log_bytes_min: int = setting(
        256 << 10,
        within=(1 << 10, 1 << 40),
        doc="A partition of __consumer_offsets is rewritten only when its log is at least this long.",
    )
    offsets_rewrite_ratio: int = setting(
        4,
        within=(2, 1_000),
        doc="A partition of __consumer_offsets is rewritten when its log is this many times as "
        "long as the result of the last rewrite.",
    )
    offsets_retention_ms: int = setting(
        604_800_000,
        within=(1, 1 << 62),
        doc="Kafka's offsets.retention.minutes: how long an offset is kept after its commit, or after "
        "the group's last member left if that is later.",
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000,
        within=(1, 86_400_000),
        doc="Kafka's offsets.retention.check.interval.ms: interval of the search for expired offsets.",
    )
    coordinator_writes_in_flight_max: int = setting(
        10_000,
        within=(1, 1_000_000),
        doc="Record batches of one partition of __consumer_offsets that are not durable yet. "
        "Further commits get COORDINATOR_NOT_AVAILABLE.",
    )
    coordinator_wait_ms_max: int = setting(
        2_000,
        within=(0, 60_000),
        doc="How long a request waits until the partition of __consumer_offsets for its group is "
        "created, opened and loaded. After that, the client gets COORDINATOR_NOT_AVAILABLE or "
        "COORDINATOR_LOAD_IN_PROGRESS. 0: no wait.",
    )
    coordinator_write_timeout_ms: int = setting(
        5_000,
        within=(1, 300_000),
        doc="Kafka's offsets.commit.timeout.ms: longest wait for a commit to become durable. "
        "After that, the client gets COORDINATOR_NOT_AVAILABLE, and the commit may still "
        "succeed.",
    )

    def of_streams_groups(self) -> StreamsSettings:
        """Return the settings of the streams groups' state machine."""
        return StreamsSettings(
            session_timeout_ms=self.group_streams_session_timeout_ms,
            assignment_interval_ms=self.group_streams_assignment_interval_ms,
            initial_delay_ms=self.group_streams_initial_rebalance_delay_ms,
            members_max=self.group_streams_members_max,
            standby_replicas=self.group_streams_standby_replicas,
        )

    def of_consumer_groups(self) -> ConsumerSettings:
        """Return the settings of the consumer groups' state machine."""
        known: tuple[Assignor, ...] = (UniformAssignor(), RangeAssignor())
        by_name = {assignor.name: assignor for assignor in known}
        return ConsumerSettings(
            session_timeout_ms=self.group_consumer_session_timeout_ms,
            assignment_interval_ms=self.group_consumer_assignment_interval_ms,
            members_max=self.group_consumer_members_max,
            assignors={name: by_name[name] for name in self.group_consumer_assignors.split(",")},
            migration=MigrationPolicy(self.group_consumer_migration_policy),
            migrated_members_max=min(self.group_migration_members_max, self.group_members_max),
        )

    def of_share_groups(self) -> ConsumerSettings:
        """Return the settings of the share groups' state machine, which has an assignor of its own."""
        return ConsumerSettings(
            session_timeout_ms=self.group_share_session_timeout_ms,
            assignment_interval_ms=self.group_share_assignment_interval_ms,
            members_max=self.group_share_members_max,
            assignors={},
            kind="share",
        )
