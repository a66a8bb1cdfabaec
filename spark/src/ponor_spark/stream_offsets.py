"""Offsets of a streaming query in its checkpoint: JSON of topics, partitions and offsets, and topic ids.

    {"orders": {"0": 17, "1": 4}, "#topicIds": {"orders": "6b0c…"}}

The format is the Kafka source's, plus `#topicIds` (not a valid topic name). A recreated topic starts at
offset 0 under its old name, and a query with the old offsets would skip rows without an error. With the id
the query detects this as data loss, also after a restart. Offsets without ids are accepted, because they may
come from the Kafka source. Keys are sorted, because Spark compares offsets as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ponor_spark.errors import DataLossError
from ponor_spark.option_values import Offsets
from ponor_spark.snapshot import Snapshot

TOPIC_IDS: Final = "#topicIds"


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """Next offset of each partition. `topic_ids`: hexadecimal ids of the topics with a known id."""

    offsets: Offsets
    topic_ids: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Encode for Spark's checkpoint."""
        content: dict[str, Any] = {
            topic: {str(partition): offset for partition, offset in sorted(by_partition.items())}
            for topic, by_partition in sorted(self.offsets.items())
        }
        ids = {topic: self.topic_ids[topic] for topic in sorted(self.offsets) if topic in self.topic_ids}
        return {**content, TOPIC_IDS: ids} if ids else content

    @property
    def total(self) -> int:
        """Return the sum over all partitions."""
        return sum(offset for by_partition in self.offsets.values() for offset in by_partition.values())


def from_json(content: Mapping[str, Any]) -> StreamOffsets:
    """Decode from Spark's checkpoint."""
    offsets = {
        topic: {int(partition): int(offset) for partition, offset in by_partition.items()}
        for topic, by_partition in content.items()
        if topic != TOPIC_IDS
    }
    return StreamOffsets(offsets, dict(content.get(TOPIC_IDS, {})))


def topic_ids_of(snapshot: Snapshot) -> dict[str, str]:
    """Return hexadecimal topic ids by name."""
    return {each.topic: each.topic_id.hex() for each in snapshot.partitions}


def starts_of(snapshot: Snapshot) -> Offsets:
    """Return the log start of every partition."""
    starts: Offsets = {}
    for each in snapshot.partitions:
        starts.setdefault(each.topic, {})[each.partition] = each.log_start_offset
    return starts


def same_topics(start: StreamOffsets, snapshot: Snapshot, *, fail_on_data_loss: bool) -> StreamOffsets:
    """Return `start` without recreated topics, which start from their beginning.

    Raises:
        DataLossError: a topic was recreated, and `fail_on_data_loss` is set.
    """
    now = topic_ids_of(snapshot)
    replaced = [
        topic
        for topic in start.offsets
        if topic in now and start.topic_ids.get(topic, now[topic]) != now[topic]
    ]
    if replaced and fail_on_data_loss:
        raise DataLossError(
            f"failOnDataLoss: topic {replaced[0]} was deleted and recreated since the query's last batch,"
            " and its records are lost;"
            " begin with a new checkpoint, or set failOnDataLoss to false to continue at the new topic's"
            " earliest offset"
        )
    kept = {topic: offsets for topic, offsets in start.offsets.items() if topic not in replaced}
    return StreamOffsets(kept, {topic: start.topic_ids[topic] for topic in kept if topic in start.topic_ids})
