"""Interfaces that the coordinators need from the rest of the broker.

A coordinator stores its state in the partitions of an internal topic: `__consumer_offsets` or
`__transaction_state`. `ponor_broker.partitions` implements `InternalPartition` and `InternalPartitions`, the
metadata image implements `TopicDirectory`. No coordinator imports those packages, so the state machines can
be tested without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

from ponor_broker.coordination.transactional_append import Verification

MarkerListener: TypeAlias = Callable[[int, bool, "asyncio.Future[None]"], None]
"""Called within the append of a marker: with the producer id, whether the marker commits, and a future that
resolves like that of `InternalPartition.append_batch`."""


GroupConfigs: TypeAlias = Callable[[str], Mapping[str, str]]
"""Returns the dynamic configs of a group, which were checked when they were set."""


def no_group_configs(_: str) -> Mapping[str, str]:
    """Return no dynamic configs, for tests and tools without a metadata image."""
    return {}


class InternalTransactions(Protocol):
    """The transactions of an open partition of an internal topic."""

    @property
    def first_unstable_offset(self) -> int:
        """The smallest first offset of all transactions that are open or whose marker is not durable; an
        offset beyond the end of the log if there is no such transaction.
        """
        ...

    def begin_verification(
        self, producer_id: int, producer_epoch: int, *, generation: int
    ) -> Verification | None:
        """Return the proof that the caller keeps until the transaction coordinator answers; None if the
        partition has the transaction open and needs no answer.
        """
        ...

    def accept_markers(self, listener: MarkerListener | None) -> None:
        """Call `listener` for each marker from now on. A partition of `__consumer_offsets` without a
        listener refuses markers.
        """
        ...


class InternalPartition(Protocol):
    """One open partition of an internal topic, led by this broker."""

    @property
    def index(self) -> int:
        """Partition number within the topic."""
        ...

    @property
    def leader_epoch(self) -> int:
        """Epoch of this leader; the next leader has a higher epoch."""
        ...

    @property
    def log_start_offset(self) -> int:
        """First readable Kafka offset."""
        ...

    @property
    def log_end_offset(self) -> int:
        """Kafka offset of the next batch."""
        ...

    @property
    def transactions(self) -> InternalTransactions:
        """The transactions of this partition."""
        ...

    def append_batch(self, batch: bytearray, proof: Verification | None = None) -> asyncio.Future[None]:
        """Append one v2 record batch; write its base offset and leader epoch in place.

        The futures resolve in call order, when their batches are durable. If the storage refuses the batch,
        the call raises an `s3stream.errors.S3StreamError`, or the future fails with it. If the partition
        refuses the producer or its transaction, the call raises `BatchRefusedError`. The first batch of a
        transaction needs `proof`.
        """
        ...

    async def advance_log_start(self, offset: int) -> None:
        """Raise the log start to `offset`, at most the durable end; return when that is durable.

        Raises:
            S3StreamError: the new log start did not become durable; it may or may not take effect.
        """
        ...

    async def read_batches(self, start_offset: int, max_bytes: int) -> Sequence[memoryview]:
        """Return whole v2 batches, the first of which contains `start_offset`: at least one, even if it is
        larger than `max_bytes`; empty at the end of the log.
        """
        ...


PartitionCallback: TypeAlias = Callable[[InternalPartition], None]


class TopicCreator(Protocol):
    """The part of `TopicAdmin` that the coordinators use."""

    async def ensure(self, name: str, *, partitions: int) -> None:
        """Return when the topic exists in the image; create it if necessary. Idempotent.

        Raises:
            Exception: the controller refused or cannot be reached; the caller answers with a retriable error.
        """
        ...


class InternalTopicCreator(TopicCreator, Protocol):
    """A creator that also creates topics for applications."""

    async def create(
        self, name: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> object:
        """Create a topic; return when the image shows it. -1: the cluster's default replication factor.

        Raises:
            Exception: the controller refused or cannot be reached; the text is for the client.
        """
        ...


class InternalPartitions(Protocol):
    """The part of `OpenPartitions` that the coordinators use."""

    def follow(self, topic: str, on_opened: PartitionCallback, on_closed: PartitionCallback) -> None:
        """Call `on_opened` immediately for every open partition of `topic`, and from now on when one opens
        here. Call `on_closed` when one starts to close (move, deletion, stop), before its streams close.
        """
        ...


class BrokerAddress(Protocol):
    """A broker's address for clients."""

    @property
    def node_id(self) -> int: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class TopicDirectory(Protocol):
    """Topics and the leaders of their partitions, from the image."""

    def topic_id(self, name: str) -> UUID | None:
        """Return the id of a topic of the caller's tenant."""
        ...

    @property
    def version(self) -> int:
        """Index of the image; it rises on every broker in the same way."""
        ...

    def names(self) -> Sequence[str]:
        """Return the names of all topics of the caller's tenant."""
        ...

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a topic."""
        ...

    def partition_count(self, name: str) -> int | None:
        """Return the number of partitions; None if the topic does not exist."""
        ...

    def leader(self, topic: str, index: int) -> BrokerAddress | None:
        """Return the address of the partition's leader; None if the partition or its leader is missing, the
        leader is not registered, or no broker has opened the partition yet.
        """
        ...

    def is_led_by(self, topic: str, index: int, node_id: int) -> bool:
        """Return whether a broker leads the partition, even if it has not opened it."""
        ...

    def is_moving_to(self, topic: str, index: int, node_id: int) -> bool:
        """Return whether a broker is the target of the partition's move."""
        ...

    def is_new(self, topic: str, index: int) -> bool:
        """Return whether the partition exists and no broker has opened it yet."""
        ...
