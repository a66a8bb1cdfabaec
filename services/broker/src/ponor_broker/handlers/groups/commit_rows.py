"""Partitions of an OffsetCommit or a TxnOffsetCommit."""

from __future__ import annotations

from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.offset_commit import OffsetCommitRequestPartition
from ponor_kafka.messages.txn_offset_commit import TxnOffsetCommitRequestPartition
from ponor_kafka.record_rules import INT64_MAX
from ponor_runtime.clock import Clock

from ponor_broker.coordination.ports import TopicDirectory
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.records import NO_TIMESTAMP, CommittedOffset

CommitRow: TypeAlias = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition
EXISTS: Final = frozenset({ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE})
"""Results of `refusal_of` for partitions that exist."""


class CommitRows:
    """Checks partitions of a commit against the image and the settings, and builds the values to store."""

    def __init__(self, coordinator: GroupCoordinator, topics: TopicDirectory, clock: Clock) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._clock = clock

    def refusal_of(self, name: str | None, partition: CommitRow) -> ErrorCode:
        """Return the error of one partition; `name` is None for an unknown topic id."""
        if self._coordinator.shards.refusal is not None:
            return self._coordinator.shards.refusal
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        count = self._topics.partition_count(name)
        if count is None or not 0 <= partition.partition_index < count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        metadata = partition.committed_metadata or ""
        if _utf16_units(metadata) > self._coordinator.settings.offset_metadata_bytes_max:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def committed(self, name: str, partition: CommitRow, retention_ms: int = -1) -> CommittedOffset:
        """Return the value to store; a negative retention means the configured one."""
        now_ms = self._clock.wall_ms()
        topic_id = self._topics.topic_id(name)
        return CommittedOffset(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
            commit_timestamp_ms=now_ms,
            expire_timestamp_ms=NO_TIMESTAMP if retention_ms < 0 else min(now_ms + retention_ms, INT64_MAX),
            topic_id=None if topic_id is None else topic_id.bytes,
        )


def _utf16_units(text: str) -> int:
    """Return the length in UTF-16 units, which Kafka's bound counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
