"""State transitions of a transactional id: functions that return the next record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ponor_runtime.identity import ProducerId

from ponor_broker.transactions.instructions import Markers
from ponor_broker.transactions.records import (
    EPOCH_MAX,
    GENERATION_2,
    NO_PRODUCER,
    TransactionRecord,
    TransactionState,
)


def prepared(*, is_commit: bool) -> TransactionState:
    """Return the Prepare state for an outcome."""
    return TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT


def raised(
    record: TransactionRecord, now_ms: int, new_producer_id: ProducerId | None, *, is_commit: bool
) -> TransactionRecord | None:
    """Return the Prepare record with a raised epoch. The markers get this epoch, so partitions refuse later
    batches of the old epoch. None if a new producer id is needed and missing, because the state changed after
    the caller had read `needs_producer_id`.
    """
    if not record.is_exhausted:
        new_producer_id = NO_PRODUCER
    elif new_producer_id is None:
        return None
    return changed(
        record,
        now_ms,
        state=prepared(is_commit=is_commit),
        producer_epoch=min(record.producer_epoch + 1, EPOCH_MAX),
        next_producer_id=new_producer_id,
        start_ms=record.start_ms if record.state is TransactionState.ONGOING else now_ms,
        client_version=GENERATION_2,
    )


def changed(record: TransactionRecord, now_ms: int, **changes: Any) -> TransactionRecord:
    """Return the record with these changes, the time of the change and the previous producer id."""
    return replace(record, update_ms=now_ms, previous_producer_id=record.producer_id, **changes)


def completed(record: TransactionRecord, now_ms: int) -> TransactionRecord:
    """Return the Complete record, with the next producer id if the current one has no epochs left."""
    is_rotated = record.is_generation_2 and record.next_producer_id != NO_PRODUCER
    return changed(
        record,
        now_ms,
        state=TransactionState.COMPLETE_COMMIT if record.state.is_commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        producer_id=record.next_producer_id if is_rotated else record.producer_id,
        producer_epoch=0 if is_rotated else record.producer_epoch,
        next_producer_id=NO_PRODUCER,
    )


def markers(record: TransactionRecord) -> Markers:
    """Return the markers of a decided transaction."""
    return Markers(
        record.producer_id,
        record.producer_epoch,
        is_commit=record.state.is_commit,
        is_generation_2=record.is_generation_2,
        partitions=record.partitions,
    )
