"""The seam between groups and partitions: what the group coordinator needs of the rest of the broker.

Only protocols live here. The coordinator keeps its state in the partitions of `__consumer_offsets`, which are partitions like
all others: `ponor_broker.partitions` fulfils `OffsetsPartition` and `OffsetsPartitions`, the metadata image fulfils
`TopicDirectory` and `BrokerDirectory`. Nothing in `ponor_broker.groups` imports those packages, so that the state machines can be
tested, and moved between brokers later, without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

OFFSETS_TOPIC = "__consumer_offsets"
"""Kafka's name for the internal topic; tools look it up by this name."""


class AppendResult(Protocol):
    """What a durable append tells."""

    @property
    def base_offset(self) -> int:
        """Kafka offset of the batch's first record."""
        ...


class OffsetsPartition(Protocol):
    """One open partition of `__consumer_offsets`, led by this broker."""

    @property
    def index(self) -> int:
        """Partition number within the topic."""
        ...

    @property
    def log_start_offset(self) -> int:
        """First Kafka offset that can be read."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The Kafka offset that the next batch gets."""
        ...

    def append_batch(self, batch: bytearray) -> asyncio.Future[AppendResult]:
        """Append one v2 record batch; its base offset and leader epoch are patched in place.

        The future resolves when the batch is durable, in the order of the calls. It fails, or the call raises, with an
        `s3stream.errors.S3StreamError` when the batch was not taken.
        """
        ...

    async def advance_log_start(self, offset: int) -> None:
        """Move the start of the log up to `offset`, which is at most its durable end; return when that is durable.

        Raises:
            S3StreamError: it cannot be made durable now; the start is where it was, or there already.
        """
        ...

    async def read_batches(self, start_offset: int, max_bytes: int) -> Sequence[memoryview]:
        """Whole v2 batches from the one that contains `start_offset` on, at least one however big; empty at the end of the log."""
        ...


PartitionCallback: TypeAlias = Callable[[OffsetsPartition], None]


class OffsetsPartitions(Protocol):
    """The partition manager, as far as the coordinator needs it."""

    async def ensure_topic(self, name: str, *, partitions: int, internal: bool) -> None:
        """Return once the topic exists in the image; make it when it is missing. Idempotent.

        Raises:
            Exception: the controller refused or cannot be reached; the caller answers with a retriable error.
        """
        ...

    def get(self, name: str, index: int) -> OffsetsPartition | None:
        """The partition if it is open on this broker."""
        ...

    def on_opened(self, name: str, callback: PartitionCallback) -> None:
        """Call back for every partition of `name` that opens here from now on, and at once for those already open."""
        ...

    def on_closed(self, name: str, callback: PartitionCallback) -> None:
        """Call back when a partition of `name` starts closing here (move, deletion, stop), before its streams close."""
        ...


class TopicDirectory(Protocol):
    """Names, ids and sizes of topics, from the image."""

    def topic_id(self, name: str) -> UUID | None:
        """Id of a topic of the caller's tenant."""
        ...

    def topic_name(self, topic_id: UUID) -> str | None:
        """Name of a topic."""
        ...

    def partition_count(self, name: str) -> int | None:
        """Number of partitions; None when there is no such topic."""
        ...


class BrokerAddress(Protocol):
    """Where clients reach a broker."""

    @property
    def node_id(self) -> int: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class BrokerDirectory(Protocol):
    """Who leads what, from the image."""

    def leader(self, topic: str, index: int) -> BrokerAddress | None:
        """Address of the partition's leader; None when there is no partition, no leader, or the leader is not registered, or has not opened it once."""
        ...

    def is_led_by(self, topic: str, index: int, node_id: int) -> bool:
        """Whether a broker leads the partition, opened or not."""
        ...

    def is_moving_to(self, topic: str, index: int, node_id: int) -> bool:
        """Whether a broker is the target of the partition's move."""
        ...

    def is_new(self, topic: str, index: int) -> bool:
        """Whether the partition exists and was never opened."""
        ...
