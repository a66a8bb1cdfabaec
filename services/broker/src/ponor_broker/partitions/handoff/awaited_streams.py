"""Partitions that this broker is to lead and that another process has not let go of yet: they wait for the records that say so.

What lives here: the question whether all streams of a partition are closed, asked of the image, and which waiting partitions a batch of records speaks
of. After a failover the new leaders are elected before the dead broker's log is recovered, and its streams are closed by that; asking the controller
again and again would tell nothing sooner.
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
    """See the module's docstring. True while somebody waits."""

    def __init__(self, topics: Topics, node_id: NodeId) -> None:
        self._topics = topics
        self._node_id = node_id
        self._waiting: dict[PartitionKey, None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def partitions(self) -> Iterable[PartitionKey]:
        """Those that wait."""
        return self._waiting.keys()

    def holds_back(self, row: PartitionRow) -> bool:
        """Whether the partition has to wait; then `closed_by` tells when to ask again. What this process opened for it already is no reason."""
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
        """The partition is not for this broker any more."""
        self._waiting.pop(key, None)

    def closed_by(self, batch: RecordBatch) -> Iterator[PartitionKey]:
        """Waiting partitions of which the batch, which was applied, closed a stream."""
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
