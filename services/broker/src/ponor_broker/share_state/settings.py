"""Settings of the share coordinator, with Kafka's defaults where Kafka has the setting."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.settings import setting


@dataclass(frozen=True, slots=True)
class ShareStateSettings:
    """Bounds and delays of the state of share groups. Each `doc` names Kafka's setting, if there is one."""

    share_state_topic_partitions: int = setting(
        50,
        within=(1, 1_000),
        doc="Kafka's share.coordinator.state.topic.num.partitions. It has no effect after "
        "__share_group_state was created.",
    )
    share_state_updates_per_snapshot: int = setting(
        500,
        within=(0, 500),
        doc="Kafka's share.coordinator.snapshot.update.records.per.snapshot: after this many updates, the "
        "next record of a share partition contains its whole state.",
    )
    share_state_memory_bytes_max: int = setting(
        256 << 20,
        within=(64 << 10, 1 << 40),
        doc="Memory for the state of the share partitions that this broker coordinates. When it is used up, "
        "requests that need more get COORDINATOR_NOT_AVAILABLE.",
    )
    share_state_load_bytes_max: int = setting(
        5 << 20,
        within=(1 << 10, 64 << 20),
        doc="Kafka's share.coordinator.load.buffer.size: bytes read at a time while a partition of "
        "__share_group_state is loaded.",
    )
    share_state_writes_in_flight_max: int = setting(
        10_000,
        within=(1, 1_000_000),
        doc="Records of one partition of __share_group_state that are not durable yet. Further requests get "
        "COORDINATOR_NOT_AVAILABLE.",
    )
    share_state_write_timeout_ms: int = setting(
        5_000,
        within=(1, 300_000),
        doc="Kafka's share.coordinator.write.timeout.ms: longest wait of a request for its record to become "
        "durable. After it, the sender gets COORDINATOR_NOT_AVAILABLE, and the change may still succeed.",
    )
    share_state_wait_ms_max: int = setting(
        2_000,
        within=(0, 60_000),
        doc="How long FindCoordinator for a share partition waits until __share_group_state is created and "
        "opened. 0: no wait.",
    )
    share_state_request_timeout_ms: int = setting(
        15_000,
        within=(1, 300_000),
        doc="How long a broker repeats a request for the state of a share partition while its coordinator "
        "moves, loads or cannot be reached.",
    )
    share_state_waiting_bytes_max: int = setting(
        64 << 20,
        within=(64 << 10, 1 << 40),
        doc="Memory for requests of this broker that wait for share coordinators. Further ones fail with "
        "COORDINATOR_NOT_AVAILABLE.",
    )
    share_state_rewrite_log_bytes_min: int = setting(
        256 << 10,
        within=(1 << 10, 1 << 40),
        doc="A partition of __share_group_state is rewritten only when its log has at least this many bytes.",
    )
    share_state_rewrite_ratio: int = setting(
        4,
        within=(2, 1_000),
        doc="A partition of __share_group_state is rewritten when its log is this many times as long as the "
        "result of the last rewrite.",
    )
