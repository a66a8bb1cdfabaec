"""The open partitions of a broker, their listeners, and the partitions to compare with the image.

`partition_manager` looks partitions up here; `handoff/` adds them, and reports when a move begins or is
cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_metadata.nouns.topics import TOPICS

from ponor_broker.partitions.handoff.transit_parking import TransitParking
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.topics.topic_config import TopicConfigs
from ponor_broker.partitions.topics.topics import Topics

PartitionCallback: TypeAlias = Callable[[Partition], None]


class OpenPartitions:
    """Open partitions by key and by name.

    Attributes:
        by_key: by topic id and partition number.
        by_name: by topic name and partition number.
        parking: requests that wait for partitions in transit.
        changed: set whenever a partition must be compared with the image.
        removed: called with a partition that closes, or was moved.
    """

    def __init__(self, topics: Topics, configs: TopicConfigs, parking: TransitParking) -> None:
        self._topics = topics
        self._configs = configs
        self.parking = parking
        self.by_key: dict[PartitionKey, Partition] = {}
        self.by_name: dict[tuple[str, int], Partition] = {}
        self._listeners: dict[str, list[tuple[PartitionCallback, PartitionCallback]]] = {}
        self._stale: dict[PartitionKey, None] = {}
        self.changed = asyncio.Event()
        self.removed: list[PartitionCallback] = []

    def add(self, partitions: Sequence[Partition]) -> None:
        """Add partitions that serve from now on."""
        for partition in partitions:
            identity = partition.identity
            self.by_key[identity.key] = partition
            self.by_name[identity.topic, identity.index] = partition
            self._apply_config(partition)  # the image may have changed while it opened
            self.note_stale(identity.key)
            self.accepts_appends(partition)

    def remove(self, partition: Partition) -> None:
        """Remove a partition that closes, or was moved."""
        identity = partition.identity
        self.by_key.pop(identity.key, None)
        if self.by_name.get((identity.topic, identity.index)) is partition:
            del self.by_name[identity.topic, identity.index]
        if not partition.service.is_sealed:  # otherwise the listeners were notified when the move began
            self.refuses_appends(partition)
        for on_removed in self.removed:
            on_removed(partition)

    def accepts_appends(self, partition: Partition) -> None:
        """Notify listeners and parked requests after the partition was opened, or after its move was
        cancelled.
        """
        for on_opened, _ in self._listeners.get(partition.identity.topic, ()):
            on_opened(partition)
        self.parking.settled(partition.identity.key)

    def refuses_appends(self, partition: Partition) -> None:
        """Notify listeners, because a move begins or the partition closes."""
        for _, on_closed in self._listeners.get(partition.identity.topic, ()):
            on_closed(partition)

    def follow(self, topic: str, on_opened: PartitionCallback, on_closed: PartitionCallback) -> None:
        """Call `on_opened` for every partition of a topic that opens here from now on, and immediately for
        open ones; call `on_closed` when one starts closing, before its streams close.
        """
        self._listeners.setdefault(topic, []).append((on_opened, on_closed))
        for partition in list(self.by_key.values()):
            if partition.identity.topic == topic:
                on_opened(partition)

    # Comparison with the image

    def note_stale(self, key: PartitionKey) -> None:
        """Note a partition to compare with the image."""
        self._stale[key] = None
        self.changed.set()

    def take_stale(self) -> dict[PartitionKey, None]:
        """Remove and return the partitions to compare with the image."""
        stale, self._stale = self._stale, {}
        return stale

    def apply_configs(self, batch: RecordBatch | None) -> None:
        """Apply changed configs: of the topics in the batch, or of all if a broker's configs changed."""
        records = () if batch is None else batch.records
        of_all = batch is None or any(record.HasField("broker_configs_set") for record in records)
        topic_ids = {
            record.topic_configs_set.topic_id for record in records if record.HasField("topic_configs_set")
        }
        for (topic_id, _), partition in self.by_key.items():
            if of_all or topic_id in topic_ids:
                self._apply_config(partition)

    def _apply_config(self, partition: Partition) -> None:
        topic = self._topics.image[TOPICS].get(partition.identity.topic_id)
        if topic is not None:
            config = self._configs.of(topic)
            if config is not partition.config:
                partition.apply_config(config)
