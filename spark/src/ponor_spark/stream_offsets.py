"""The offsets of a streaming query, as its checkpoint keeps them: JSON of topics, partitions and offsets, and the ids of the topics.

    {"orders": {"0": 17, "1": 4}, "#topicIds": {"orders": "6b0c…"}}

The shape is the Kafka source's; `#topicIds` (no topic can be named so) is ours. A topic that is deleted and made again starts at offset 0 under its old name, and a query that went on with its old offsets
would skip rows without a word; with the id it is data loss, also after a restart. Offsets without ids are taken, as they may come from the Kafka source.
Keys are sorted: Spark compares offsets as texts.
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
    """Where each partition stands: the next offset to be read. `topic_ids`: hexadecimal, of the topics that are known by id."""

    offsets: Offsets
    topic_ids: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What Spark stores."""
        content: dict[str, Any] = {
            topic: {str(partition): offset for partition, offset in sorted(by_partition.items())}
            for topic, by_partition in sorted(self.offsets.items())
        }
        ids = {topic: self.topic_ids[topic] for topic in sorted(self.offsets) if topic in self.topic_ids}
        return {**content, TOPIC_IDS: ids} if ids else content

    @property
    def total(self) -> int:
        """Sum over all partitions."""
        return sum(offset for by_partition in self.offsets.values() for offset in by_partition.values())


def from_json(content: Mapping[str, Any]) -> StreamOffsets:
    """What Spark stored."""
    offsets = {
        topic: {int(partition): int(offset) for partition, offset in by_partition.items()}
        for topic, by_partition in content.items()
        if topic != TOPIC_IDS
    }
    return StreamOffsets(offsets, dict(content.get(TOPIC_IDS, {})))


def topic_ids_of(snapshot: Snapshot) -> dict[str, str]:
    """Hexadecimal, by name."""
    return {each.topic: each.topic_id.hex() for each in snapshot.partitions}


def starts_of(snapshot: Snapshot) -> Offsets:
    """The log start of every partition."""
    starts: Offsets = {}
    for each in snapshot.partitions:
        starts.setdefault(each.topic, {})[each.partition] = each.log_start_offset
    return starts


def same_topics(start: StreamOffsets, snapshot: Snapshot, *, fail_on_data_loss: bool) -> StreamOffsets:
    """`start` without topics that are others by now under their old names: these begin anew.

    Raises:
        DataLossError: there is one, and `fail_on_data_loss`.
    """
    now = topic_ids_of(snapshot)
    replaced = [
        topic
        for topic in start.offsets
        if topic in now and start.topic_ids.get(topic, now[topic]) != now[topic]
    ]
    if replaced and fail_on_data_loss:
        raise DataLossError(
            f"failOnDataLoss: topic {replaced[0]} was deleted and made again since the query's last batch, and what it held is lost;"
            " begin with a new checkpoint, or set failOnDataLoss to false to go on at the new topic's earliest offset"
        )
    kept = {topic: offsets for topic, offsets in start.offsets.items() if topic not in replaced}
    return StreamOffsets(kept, {topic: start.topic_ids[topic] for topic in kept if topic in start.topic_ids})
