"""Announcements: decide from when on responses to clients name the leader of a partition.

Responses name the leader of a new partition only after the leader has put the partition's key, whose value is
the id of the Meta stream. By then, the leader's image shows the partition, so the leader serves requests, or
parks them until it serves. A client that connects earlier may reach the leader before its image shows the
topic, and requests without acknowledgement would be lost.

After a failover, the new leader is named when the Meta stream is no longer open at a former leader. Until
then, the former leader's log is being recovered, which may take longer than requests can be parked at the new
leader. Clients that get no leader keep their records and retry. In a planned move, a leader is always named:
the streams are closed before the election, and both brokers park requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from ponor.metadata.v1.records_pb2 import PartitionChanged, RecordBatch
from ponor_kafka.errors import ErrorCode
from ponor_metadata.nouns.topics import PartitionRow

from ponor_broker.partitions.errors import BrokerFencedError, PartitionError
from ponor_broker.partitions.topics.topics import Broker, Topics, topic_of_key

HINTED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)


class LeaderHint(NamedTuple):
    """The leader and its epoch in the image, and its address."""

    leader_id: int
    leader_epoch: int
    endpoint: Broker | None


def leader_hint(topics: Topics, topic: str | bytes, index: int, error: PartitionError) -> LeaderHint | None:
    """Return the hint for a refusal; None if it would not help, the image may be outdated, or
    Metadata would name no leader.
    """
    if error.code not in HINTED or isinstance(error, BrokerFencedError):
        return None
    row = topics.by_id(topic) if isinstance(topic, bytes) else topics.by_name(topic)
    partition = None if row is None else topics.partition(row.topic_id, index)
    if partition is None or not topics.is_announced(partition):
        return None
    return LeaderHint(partition.leader_id, partition.leader_epoch, topics.broker(partition.leader_id))


class Announcements:
    """Announcements of one tenant's topics in this broker's image. `image_changed` must be called
    for every batch.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._complete: dict[bytes, int] = {}
        """Number of partitions of each topic whose partitions are all announced. A new leader or a deletion
        may remove an entry."""
        self._waiting: dict[bytes, list[asyncio.Future[None]]] = {}

    def is_complete(self, topic_id: bytes, partitions: Sequence[PartitionRow]) -> bool:
        """Return whether all partitions of a topic are announced. Cheap if they are, or if the
        first one is not.
        """
        if self._complete.get(topic_id) == len(partitions):
            return True
        if not all(map(self._topics.is_announced, partitions)):
            return False
        self._complete[topic_id] = len(partitions)
        return True

    async def wait(self, topic_id: bytes, ms_max: int) -> bool:
        """Wait until all partitions of a topic are announced; return False after the time limit. A
        deleted topic counts as announced.
        """
        try:
            async with asyncio.timeout(ms_max / 1000):
                while not self.is_complete(topic_id, self._topics.partitions(topic_id)):
                    changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.setdefault(topic_id, []).append(changed)
                    await changed
        except TimeoutError:
            return False
        return True

    def image_changed(self, batch: RecordBatch | None) -> None:
        """Handle an applied batch; None: the image was replaced."""
        if batch is None:
            self._complete.clear()
            for topic_id in list(self._waiting):
                self._wake(topic_id)
            return
        for record in batch.records:
            if record.HasField("topic_deleted"):
                self._complete.pop(record.topic_deleted.topic_id, None)
                self._wake(record.topic_deleted.topic_id)
            elif record.HasField("partition_changed"):
                self._leader_changed(record.partition_changed)
            elif self._waiting and record.HasField("stream_closed"):
                for topic_id in list(self._waiting):
                    self._wake(topic_id)
            elif self._waiting and record.HasField("key_put"):
                named = topic_of_key(record.key_put.key)
                if named is not None:
                    self._wake(named)

    def _leader_changed(self, changed: PartitionChanged) -> None:
        # Only complete topics are checked, so that a failover of thousands of partitions costs one
        # check per topic.
        if changed.topic_id not in self._complete:
            return
        row = self._topics.partition(changed.topic_id, changed.partition)
        if row is None or not self._topics.is_announced(row):
            del self._complete[changed.topic_id]

    def _wake(self, topic_id: bytes) -> None:
        for waiting in self._waiting.pop(topic_id, ()):
            if not waiting.done():
                waiting.set_result(None)
