"""Topics, brokers and configs of groups as one tenant's clients see them: look-ups in the metadata image.

The controller makes all decisions; changes go through `topic_admin`. Topic ids are the 16 raw bytes
of a UUID.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from ponor_metadata.nouns.cluster import TENANTS
from ponor_metadata.nouns.groups import GROUP_CONFIGS
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import BROKER_LISTENERS, NODES, NodeRole, NodeRow
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OF_PARTITION, StreamRow
from ponor_metadata.nouns.topics import (
    MOVES,
    NO_LEADER,
    PARTITIONS,
    PARTITIONS_LED_BY,
    PARTITIONS_OF,
    TOPICS,
    TOPICS_NAMED,
    TOPICS_OF_TENANT,
    PartitionRow,
    TopicRow,
)
from ponor_metadata.tables.schema import View
from ponor_runtime.host_port import split_host_port
from ponor_runtime.identity import DEFAULT_TENANT, NodeId, StreamId, TenantId

from ponor_broker.partitions.identity import PartitionKey

LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def is_valid_name(name: str) -> bool:
    """Return whether a topic may have this name."""
    return name_problem(name) is None


def name_problem(name: str) -> str | None:
    """Return why the name is invalid, with Kafka's message text; None if it is valid."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in {".", ".."}:
        problem = f"'{name}' is not allowed"
    elif len(name) > LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {LENGTH_MAX}"
    elif _LEGAL.fullmatch(name) is None:
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {problem}"


_KEY_PREFIX = "partition/"
MAIN_LISTENER: Final = ""
"""The listener in a broker's `NodeRow`, which other brokers use too. Further listeners have names."""


class Broker(NamedTuple):
    """A broker's address for clients of one listener."""

    node_id: int
    host: str
    port: int


class Topics:
    """The image for one tenant. `image` is called at every look-up, because a subscription may replace it."""

    def __init__(self, image: Callable[[], View], tenant_id: TenantId = DEFAULT_TENANT) -> None:
        self._image = image
        self.tenant_id = tenant_id

    @property
    def image(self) -> View:
        """The current image."""
        return self._image()

    @property
    def cluster_id(self) -> str | None:
        """The tenant's cluster.id; None before the tenant is in the image."""
        tenant = self.image[TENANTS].get(self.tenant_id)
        return None if tenant is None else tenant.cluster_id

    def by_name(self, name: str) -> TopicRow | None:
        """Return the tenant's topic of this name."""
        rows = self.image[TOPICS].find(TOPICS_NAMED, (self.tenant_id, name))
        return rows[0] if rows else None

    def by_id(self, topic_id: bytes) -> TopicRow | None:
        """Return the tenant's topic with this id."""
        row = self.image[TOPICS].get(topic_id)
        return row if row is not None and row.tenant_id == self.tenant_id else None

    def all(self) -> Sequence[TopicRow]:
        """The tenant's topics by name."""
        return self.image[TOPICS].find(TOPICS_OF_TENANT, self.tenant_id)

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        """Return a group's own configs; none for a group that has none or does not exist."""
        row = self.image[GROUP_CONFIGS].get((self.tenant_id, group_id))
        return {} if row is None else row.configs

    def groups_with_configs(self) -> list[str]:
        """Return the ids of the tenant's groups with own configs, sorted."""
        return [row.group_id for row in self.image[GROUP_CONFIGS] if row.tenant_id == self.tenant_id]

    def partitions(self, topic_id: bytes) -> Sequence[PartitionRow]:
        """A topic's partitions by number."""
        return self.image[PARTITIONS].find(PARTITIONS_OF, topic_id)

    def partition(self, topic_id: bytes, index: int) -> PartitionRow | None:
        """One partition."""
        return self.image[PARTITIONS].get((topic_id, index))

    def led_by(self, node_id: NodeId) -> Sequence[PartitionRow]:
        """Partitions that a broker leads, of all tenants."""
        return self.image[PARTITIONS].find(PARTITIONS_LED_BY, node_id)

    def brokers(self, listener: str = MAIN_LISTENER, *, fenced: bool = False) -> list[Broker]:
        """Return the registered brokers that are not fenced, or with `fenced` those that are, by node id.

        Their addresses are those of the listener; brokers without it are omitted.
        """
        rows = (row for row in self.image[NODES] if row.role is NodeRole.BROKER and row.fenced is fenced)
        addresses = (self._address(row, listener) for row in rows)
        return [address for address in addresses if address is not None]

    def broker(self, node_id: int, listener: str = MAIN_LISTENER) -> Broker | None:
        """Return a broker if it is registered, not fenced, and has the listener."""
        row = self.image[NODES].get(NodeId(node_id))
        if row is None or row.role is not NodeRole.BROKER or row.fenced:
            return None
        return self._address(row, listener)

    def _address(self, row: NodeRow, listener: str) -> Broker | None:
        if listener == MAIN_LISTENER:
            return Broker(row.node_id, row.kafka_host, row.kafka_port)
        further = self.image[BROKER_LISTENERS].get(row.node_id)
        address = None if further is None else further.listeners.get(listener)
        return None if address is None else Broker(row.node_id, *split_host_port(address))

    def meta_stream_id(self, topic_id: bytes, index: int) -> StreamId | None:
        """Return the Meta stream of a partition; None before its first open."""
        row = self.image[KEYS].get(meta_stream_key(topic_id, index))
        return None if row is None else decode_stream_id(row.value)

    def is_announced(self, row: PartitionRow) -> bool:
        """Return whether clients get the leader of a partition: see `announcements`."""
        stream_id = self.meta_stream_id(row.topic_id, row.partition)
        if stream_id is None:
            return False
        stream = self.image[STREAMS].get(stream_id)
        if stream is None or not stream.open:
            return True
        return (stream.node_id, stream.stream_epoch) == (row.leader_id, row.leader_epoch)

    def announced_leader(self, row: PartitionRow) -> Broker | None:
        """Return the leader's address for clients; None: they must retry."""
        return self.broker(row.leader_id) if self.is_announced(row) else None

    def streams(self, key: PartitionKey) -> Sequence[StreamRow]:
        """Return all streams with a partition's tags, by id."""
        return self.image[STREAMS].find(STREAMS_OF_PARTITION, (key[0].hex(), str(key[1])))

    def streams_to_open(self, key: PartitionKey, leader_epoch: int) -> list[StreamId]:
        """Return, by id, the streams of a partition that have been opened at least once and are open, or can
        be opened, at `leader_epoch`.

        A stream that was closed at this epoch stays closed until the next epoch.
        """
        return [
            row.stream_id
            for row in self.streams(key)
            if row.stream_epoch >= 0 and (row.open or row.stream_epoch < leader_epoch)
        ]

    def streams_open_at(self, key: PartitionKey, node_id: NodeId) -> list[StreamRow]:
        """Return streams of a partition that are open at a broker, by id."""
        return [row for row in self.streams(key) if row.open and row.node_id == node_id]

    # For the coordinators

    def topic_id(self, name: str) -> UUID | None:
        """Id of a topic."""
        row = self.by_name(name)
        return None if row is None else UUID(bytes=row.topic_id)

    @property
    def version(self) -> int:
        """Index of the image."""
        return self.image.index

    def names(self) -> Sequence[str]:
        """Names of all topics."""
        return [row.name for row in self.all()]

    def topic_name(self, topic_id: UUID) -> str | None:
        """Name of a topic."""
        row = self.by_id(topic_id.bytes)
        return None if row is None else row.name

    def partition_count(self, name: str) -> int | None:
        """Number of partitions; None if the topic does not exist."""
        row = self.by_name(name)
        return None if row is None else len(self.partitions(row.topic_id))

    def leader(self, topic: str, index: int) -> Broker | None:
        """Return the address of the leader, for clients of a coordinator; None before the first open.

        Unlike Metadata, return the new leader even while the log of a failed one is being recovered: a
        coordinator lets requests wait, and answers heartbeats with success.
        """
        row = self._named(topic, index)
        if row is None or self.meta_stream_id(row.topic_id, index) is None:
            return None
        return self.broker(row.leader_id)

    def leader_id(self, topic: str, index: int) -> int | None:
        """Return the node id of a partition's leader; −1 if it has none now; None if there is no such
        partition.
        """
        row = self._named(topic, index)
        return None if row is None else row.leader_id

    def is_new(self, topic: str, index: int) -> bool:
        """Return whether the partition exists and no broker has opened it yet."""
        row = self._named(topic, index)
        return row is not None and self.meta_stream_id(row.topic_id, index) is None

    def is_led_by(self, topic: str, index: int, node_id: int) -> bool:
        """Return whether a broker leads a partition, even if it has not opened it."""
        row = self._named(topic, index)
        return row is not None and row.leader_id == node_id

    def is_moving_to(self, topic: str, index: int, node_id: int) -> bool:
        """Whether a broker is the target of a partition's move."""
        row = self.by_name(topic)
        move = None if row is None else self.image[MOVES].get((row.topic_id, index))
        return move is not None and move.target_id == node_id

    def _named(self, topic: str, index: int) -> PartitionRow | None:
        row = self.by_name(topic)
        return None if row is None else self.partition(row.topic_id, index)


def shown_replicas(row: PartitionRow) -> list[int]:
    """Return the replicas, which are also the ISR, for clients: only the leader, although `row.replicas` also
    contains the target of a move.
    """
    return [] if row.leader_id == NO_LEADER else [row.leader_id]


def meta_stream_key(topic_id: bytes, index: int) -> str:
    """Return the controller's key that holds a partition's Meta stream id."""
    return f"{_KEY_PREFIX}{topic_id.hex()}/{index}"


def topic_of_key(key: str) -> bytes | None:
    """Return the topic id of a Meta stream key; None for other keys."""
    return bytes.fromhex(key[len(_KEY_PREFIX) :].partition("/")[0]) if key.startswith(_KEY_PREFIX) else None


def encode_stream_id(stream_id: StreamId) -> bytes:
    """Return the value of a Meta stream key: decimal digits."""
    return b"%d" % stream_id


def decode_stream_id(value: bytes) -> StreamId:
    """Decode the output of `encode_stream_id`."""
    return StreamId(int(value))
