"""Partitions that this broker leads but whose streams another process still holds.

After a failover, the new leaders are elected before the failed broker's log is recovered, and the recovery
closes the broker's streams. The records that close streams show which waiting partitions can be opened;
polling the controller would not be faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_metadata.nouns.streams import PARTITION_TAG, STREAMS, STREAMS_OF_PARTITION, TOPIC_TAG
from ponor_metadata.nouns.topics import PartitionRow
from ponor_runtime.identity import NodeId, StreamId

from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.topics.topics import Topics


class AwaitedStreams:
    """The waiting partitions of one broker; false as a bool if there are none."""

    def __init__(self, topics: Topics, node_id: NodeId) -> None:
        self._topics = topics
        self._node_id = node_id
        self._waiting: dict[PartitionKey, None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def partitions(self) -> Iterable[PartitionKey]:
        """The waiting partitions."""
        return self._waiting.keys()

    def holds_back(self, row: PartitionRow) -> bool:
        """Return whether the partition must wait; `closed_by` yields it later. A partition does not wait for
        streams that this process has opened already.
        """
        key = (row.topic_id, row.partition)
        streams = self._topics.image[STREAMS].find(
            STREAMS_OF_PARTITION, (row.topic_id.hex(), str(row.partition))
        )
        for stream in streams:
            is_ours = stream.node_id == self._node_id and stream.stream_epoch == row.leader_epoch
            if stream.open and not is_ours:
                self._waiting[key] = None
                return True
        self._waiting.pop(key, None)
        return False

    def forget(self, key: PartitionKey) -> None:
        """Drop a partition that this broker no longer leads."""
        self._waiting.pop(key, None)

    def closed_by(self, batch: RecordBatch) -> Iterator[PartitionKey]:
        """Yield the waiting partitions that have a stream which the applied batch closed."""
        streams = self._topics.image[STREAMS]
        for record in batch.records:
            if not record.HasField("stream_closed"):
                continue
            stream = streams.get(StreamId(record.stream_closed.stream_id))
            if stream is None:
                continue
            tags = dict(zip(stream.tag_pairs[::2], stream.tag_pairs[1::2], strict=True))
            if TOPIC_TAG in tags and PARTITION_TAG in tags:
                key = (bytes.fromhex(tags[TOPIC_TAG]), int(tags[PARTITION_TAG]))
                if key in self._waiting:
                    yield key
