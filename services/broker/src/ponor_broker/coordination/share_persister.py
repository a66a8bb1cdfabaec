"""Interface to the durable state of share partitions (KIP-932).

The leader of a topic partition reads and writes the delivery state of its records here. The group coordinator
creates, deletes and summarizes that state. `share_state` implements the interface; neither caller imports it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from ponor_kafka.errors import ErrorCode
from ponor_runtime.identity import uuid_of_text, uuid_text

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class DeliveryState(IntEnum):
    """State of a record in a share partition; the values are those of Kafka's records."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


class SharePartitionKey(NamedTuple):
    """A share group's view of one topic partition."""

    group_id: str
    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        """Return the key by which FindCoordinator (type 2) and the shards find its state."""
        return f"{self.group_id}:{uuid_text(self.topic_id)}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> SharePartitionKey | None:
        """Return the key of a text; None if it is malformed. As in Kafka, the group id may contain colons."""
        parts = text.rsplit(":", 2)
        if len(parts) < 3 or not parts[0].strip() or not _INTEGER.fullmatch(parts[2]):
            return None
        group_id, topic_id, partition = parts
        try:
            return cls(group_id, uuid_of_text(topic_id), int(partition))
        except ValueError:
            return None


class StateBatch(NamedTuple):
    """Consecutive offsets (both inclusive) with one state, never ACQUIRED: locks are not durable."""

    first_offset: int
    last_offset: int
    state: DeliveryState
    delivery_count: int


@dataclass(frozen=True, slots=True)
class ShareState:
    """Durable state of one share partition.

    Attributes:
        state_epoch: raised by each initialization; older epochs get FENCED_STATE_EPOCH.
        start_offset: first offset that is not final (share-partition start offset, SPSO); −1 if the group
            begins at its `share.auto.offset.reset`.
        batches: states of offsets from `start_offset` on, in order, without overlaps. Missing offsets are
            AVAILABLE with delivery count 0.
    """

    state_epoch: int
    start_offset: int
    batches: Sequence[StateBatch] = ()


class StateSummary(NamedTuple):
    """What the group coordinator reads to describe the offsets of a share group.

    `delivery_complete_count` is the number of final records at or above `start_offset`; −1 if unknown.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int


class SharePersister(Protocol):
    """Reads and writes the state of share partitions, wherever their coordinators are.

    A call retries while its coordinator moves or loads, for at most the request timeout. It then returns
    COORDINATOR_NOT_AVAILABLE; a write may or may not have been applied. Calls raise no errors.
    Repeating a call is harmless.
    """

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> ErrorCode:
        """Create the state, or replace one of an older epoch. FENCED_STATE_EPOCH if it has a newer one. A
        state of the same epoch stays as it is.
        """
        ...

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState | ErrorCode:
        """Return the state and fence writers of older leader epochs (FENCED_LEADER_EPOCH). INVALID_REQUEST
        if there is no state.
        """
        ...

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> ErrorCode:
        """Merge the batches into the state; return when that is durable.

        `start_offset` −1 or a lower one keeps the present one. A raised start offset drops the batches below
        it. For one offset, the higher delivery count wins, then the higher state, so that a repeated or late
        write changes nothing. INVALID_REQUEST if there is no state.
        FENCED_STATE_EPOCH and FENCED_LEADER_EPOCH if a newer owner exists: the caller must read again.
        """
        ...

    async def delete(self, key: SharePartitionKey) -> ErrorCode:
        """Delete the state; NONE if there is none."""
        ...

    async def summary(self, key: SharePartitionKey) -> StateSummary | ErrorCode:
        """Return the summary. If there is no state, start offset and count are −1, and the epochs are 0."""
        ...
