"""The rules of one share partition's state: each request becomes a record, or an error. Pure functions.

`applied` is the state after a record. The coordinator calls it when the record is durable, and again for
each record of the log when it loads the partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode

from ponor_broker.coordination.share_persister import StateBatch
from ponor_broker.share_state.batches import merged
from ponor_broker.share_state.records import (
    NO_COUNT,
    NO_EPOCH,
    NO_OFFSET,
    ShareSnapshot,
    ShareUpdate,
)

Change: TypeAlias = ShareSnapshot | ShareUpdate | ErrorCode
"""The record to write; or the answer, if nothing must be written."""
BATCHES_MAX: Final = 10_000
"""Batches of one share partition: one for each of the most records in flight that Kafka allows."""


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """One partition of a WriteShareGroupState. Epochs of −1 are not checked."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


def applied(state: ShareSnapshot | None, record: ShareSnapshot | ShareUpdate | None) -> ShareSnapshot | None:
    """Return the state after a record."""
    if not isinstance(record, ShareUpdate):
        return record
    if state is None:
        # Kafka trims its log at the oldest snapshot in use. Updates above it may be older than the snapshot
        # of their own share partition, which follows.
        state = ShareSnapshot(record.snapshot_epoch, 0, NO_EPOCH, NO_OFFSET, NO_COUNT, 0, 0)
    is_late = record.start_offset != NO_OFFSET and record.start_offset < state.start_offset
    start_offset = max(state.start_offset, record.start_offset)
    return replace(
        state,
        leader_epoch=max(state.leader_epoch, record.leader_epoch),
        start_offset=start_offset,
        delivery_complete_count=(state if is_late else record).delivery_complete_count,
        batches=merged(state.batches, record.batches, start_offset),
    )


def initialized(state: ShareSnapshot | None, state_epoch: int, start_offset: int, *, now_ms: int) -> Change:
    """Create the state, or replace one of an older state epoch."""
    if state is not None and state_epoch != NO_EPOCH:
        if state_epoch < state.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        if state_epoch == state.state_epoch:
            # Kafka begins again at `start_offset`. A request that is repeated, or arrives late, would then
            # make acknowledged records available again.
            return ErrorCode.NONE
    return ShareSnapshot(
        snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
        state_epoch=state_epoch if state is None else max(state_epoch, state.state_epoch),
        # Kafka's fence, too, keeps the leader epoch of the replaced state.
        leader_epoch=NO_EPOCH if state is None else state.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=NO_COUNT if start_offset == NO_OFFSET else 0,
        create_ms=now_ms,
        write_ms=now_ms,
    )


def read(state: ShareSnapshot | None, leader_epoch: int) -> Change:
    """Fence older leaders: the record raises the leader epoch. NONE if the epoch is the same."""
    if state is None:
        return ErrorCode.INVALID_REQUEST
    if leader_epoch in (NO_EPOCH, state.leader_epoch):
        return ErrorCode.NONE
    if leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ShareUpdate(state.snapshot_epoch, leader_epoch, state.start_offset, state.delivery_complete_count)


def written(state: ShareSnapshot | None, request: WriteRequest) -> Change:
    """Merge batches into the state. As in Kafka, only reads raise the leader epoch."""
    if state is None:
        return ErrorCode.INVALID_REQUEST
    if state.leader_epoch == NO_EPOCH < request.leader_epoch:
        # The leader has read a state that was deleted: the group was created again, perhaps with
        # the same epoch. In Kafka 4.3.1, the write changes the new state.
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.leader_epoch != NO_EPOCH and request.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.state_epoch != NO_EPOCH and request.state_epoch < state.state_epoch:
        return ErrorCode.FENCED_STATE_EPOCH
    return ShareUpdate(
        state.snapshot_epoch,
        state.leader_epoch,
        request.start_offset,
        request.delivery_complete_count,
        merged((), request.batches, request.start_offset),
    )


def as_snapshot(after: ShareSnapshot, *, now_ms: int) -> ShareSnapshot:
    """Return the snapshot that is written instead of an update with this result."""
    return replace(after, snapshot_epoch=after.snapshot_epoch + 1, create_ms=now_ms, write_ms=now_ms)
