"""A persister in memory for tests of share groups. It keeps the state of each offset separately, so it is
also the model for tests of other persisters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ponor_broker.coordination.share_persister import (
    DeliveryState,
    SharePartitionKey,
    ShareState,
    StateBatch,
    StateSummary,
)
from ponor_kafka.errors import ErrorCode

NO_STATE = StateSummary(state_epoch=0, leader_epoch=0, start_offset=-1, delivery_complete_count=-1)


@dataclass
class OffsetStates:
    """The state of one share partition. `offsets` maps each offset to delivery count and state."""

    state_epoch: int
    start_offset: int
    leader_epoch: int = -1
    delivery_complete_count: int = -1
    offsets: dict[int, tuple[int, DeliveryState]] = field(default_factory=dict)

    def merge(self, start_offset: int, delivery_complete_count: int, batches: Sequence[StateBatch]) -> None:
        """As in Kafka, the higher delivery count wins, then the higher state. The start never falls."""
        if start_offset == -1 or start_offset >= self.start_offset:
            self.delivery_complete_count = delivery_complete_count
        self.start_offset = max(self.start_offset, start_offset)
        for batch in batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                new = (batch.delivery_count, batch.state)
                self.offsets[offset] = max(self.offsets.get(offset, new), new)
        self.offsets = {offset: one for offset, one in self.offsets.items() if offset >= self.start_offset}

    def batches(self) -> list[StateBatch]:
        """Return the shortest list of batches."""
        rows = sorted(self.offsets.items())
        found: list[StateBatch] = []
        for (_, (count, state)), run in groupby(enumerate(rows), lambda one: (one[1][0] - one[0], one[1][1])):
            offsets = [offset for _, (offset, _) in run]
            found.append(StateBatch(offsets[0], offsets[-1], state, count))
        return found


class MemoryPersister:
    """Implements `SharePersister`.

    Attributes:
        states: the durable states.
        refusal: every call returns this error and changes nothing.
        written: the arguments of all writes that were applied, in order.
        opened: while it is cleared, calls wait; a test clears it to hold calls in flight.
    """

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, OffsetStates] = {}
        self.refusal: ErrorCode | None = None
        self.written: list[tuple[SharePartitionKey, tuple[StateBatch, ...]]] = []
        self.opened = asyncio.Event()
        self.opened.set()

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> ErrorCode:
        await self.opened.wait()
        if self.refusal is not None:
            return self.refusal
        held = self.states.get(key)
        if held is not None and held.state_epoch > state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        if held is None or held.state_epoch < state_epoch:
            leader_epoch = -1 if held is None else held.leader_epoch
            complete = -1 if start_offset == -1 else 0
            self.states[key] = OffsetStates(state_epoch, start_offset, leader_epoch, complete)
        return ErrorCode.NONE

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState | ErrorCode:
        await self.opened.wait()
        if self.refusal is not None:
            return self.refusal
        held = self.states.get(key)
        if held is None:
            return ErrorCode.INVALID_REQUEST
        if held.leader_epoch > leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        held.leader_epoch = leader_epoch
        return ShareState(held.state_epoch, held.start_offset, held.batches())

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
        await self.opened.wait()
        if self.refusal is not None:
            return self.refusal
        held = self.states.get(key)
        if held is None:
            return ErrorCode.INVALID_REQUEST
        is_unread = held.leader_epoch == -1
        if is_unread or held.leader_epoch > leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if held.state_epoch > state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        held.merge(start_offset, delivery_complete_count, batches)
        self.written.append((key, tuple(batches)))
        return ErrorCode.NONE

    async def delete(self, key: SharePartitionKey) -> ErrorCode:
        await self.opened.wait()
        if self.refusal is not None:
            return self.refusal
        self.states.pop(key, None)
        return ErrorCode.NONE

    async def summary(self, key: SharePartitionKey) -> StateSummary | ErrorCode:
        await self.opened.wait()
        if self.refusal is not None:
            return self.refusal
        held = self.states.get(key)
        if held is None:
            return NO_STATE
        return StateSummary(
            held.state_epoch,
            max(held.leader_epoch, 0),
            held.start_offset,
            held.delivery_complete_count,
        )
