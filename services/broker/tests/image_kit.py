"""An image without a controller, for tests of handlers that only read it."""

from __future__ import annotations

from collections.abc import Mapping

from ponor_broker.partitions.topics.topics import Topics, encode_stream_id, meta_stream_key
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.cluster import FEATURES, TENANTS, FeatureRow, TenantRow
from ponor_metadata.nouns.groups import GROUP_CONFIGS, GroupConfigsRow
from ponor_metadata.nouns.keys import KEYS, KeyRow
from ponor_metadata.nouns.nodes import BROKER_CONFIGS, NODES, BrokerConfigsRow, NodeRole, NodeRow
from ponor_metadata.nouns.streams import STREAMS, StreamRow
from ponor_metadata.nouns.topics import PARTITIONS, TOPICS, PartitionRow, TopicRow
from ponor_runtime.identity import DEFAULT_TENANT, NodeEpoch, NodeId, StreamEpoch, StreamId

NODE, OTHER_NODE = NodeId(7), NodeId(8)
CLUSTER_ID = "the-cluster"


class ImageKit:
    """Two brokers, of which one may be fenced, and topics that are put into the image row by row."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.image[TENANTS].put(TenantRow(DEFAULT_TENANT, CLUSTER_ID))
        self.image[FEATURES].put(FeatureRow("metadata.level", 1))
        for node_id in (NODE, OTHER_NODE):
            self.put_broker(node_id)
        self.topics = Topics(lambda: self.image)

    def put_broker(self, node_id: NodeId, *, fenced: bool = False) -> None:
        row = NodeRow(node_id, NodeEpoch(1), NodeRole.BROKER, b"", f"host{node_id}", 9092, 0, fenced, 0)
        self.image[NODES].put(row)

    def put_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        leader: NodeId = NODE,
        configs: Mapping[str, str] | None = None,
        is_announced: bool = True,
    ) -> TopicRow:
        row = TopicRow(name.encode().ljust(16, b"-"), DEFAULT_TENANT, name, -1, dict(configs or {}))
        self.image[TOPICS].put(row)
        for number in range(partitions):
            self.image[PARTITIONS].put(PartitionRow(row.topic_id, number, leader, 0, (leader,)))
            if is_announced:
                self.announce(row, number)
        return row

    def announce(self, row: TopicRow, number: int) -> None:
        """Put the partition's Meta stream, open at its leader, into the image."""
        partition = self.image[PARTITIONS].get((row.topic_id, number))
        assert partition is not None
        stream_id = StreamId(len(self.image[KEYS]) + 1)
        self.image[KEYS].put(KeyRow(meta_stream_key(row.topic_id, number), encode_stream_id(stream_id)))
        self.set_meta_stream(row, number, is_open=True, at=partition.leader_id, epoch=partition.leader_epoch)

    def set_meta_stream(
        self, row: TopicRow, number: int, *, is_open: bool, at: NodeId, epoch: int = 0
    ) -> None:
        """Put the owner of a partition's Meta stream into the image."""
        stream_id = self.topics.meta_stream_id(row.topic_id, number)
        assert stream_id is not None
        owner = (at, NodeEpoch(1), (epoch, at, 0), ("partition", str(number), "topic", row.topic_id.hex()))
        self.image[STREAMS].put(StreamRow(stream_id, StreamEpoch(epoch), is_open, 0, 0, *owner))

    def elect(self, row: TopicRow, number: int, leader: NodeId, epoch: int) -> None:
        """Put a new leader of a partition into the image."""
        self.image[PARTITIONS].put(PartitionRow(row.topic_id, number, leader, epoch, (leader,)))

    def set_broker(self, node_id: NodeId, **configs: str) -> None:
        """Put dynamic configs; dots in names are written as two underscores."""
        named = {name.replace("__", "."): value for name, value in configs.items()}
        self.image[BROKER_CONFIGS].put(BrokerConfigsRow(node_id, named))

    def set_group(self, group_id: str, **configs: str) -> None:
        """Put a group's configs; dots in names are written as two underscores."""
        named = {name.replace("__", "."): value for name, value in configs.items()}
        self.image[GROUP_CONFIGS].put(GroupConfigsRow(DEFAULT_TENANT, group_id, named))


def context(version: int) -> RequestContext:
    """A request of some client, over the main listener."""
    return RequestContext(version, "client", ConnectionContext("peer:1"))
