"""Sequences that stop a partition: at a stop, because the image shows another leader, or for a
move, which may be cancelled.

`partition_manager` and `handoff_source` call them; the streams of moved partitions are closed
there, many together.
"""

from __future__ import annotations

import contextlib
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.turns import TurnBudget
from s3stream.errors import AppendBackpressureError

from ponor_broker.partitions.partition import Partition

PERSISTED_PER_TURN_MAX: Final = 32
PERSISTED_TURN_NS_MAX: Final = 4_000_000
"""A turn of the event loop writes no further clean checkpoint after one of these bounds: that of an idle
partition takes 0.15 ms, that of 10,000 producers 3 ms. Many partitions leave together."""


def closing_budget(clock: Clock) -> TurnBudget:
    """Return the budget of partitions that close together."""
    return TurnBudget(clock, count_max=PERSISTED_PER_TURN_MAX, duration_ns_max=PERSISTED_TURN_NS_MAX)


# Permanently


async def seal(partition: Partition, turns: TurnBudget) -> None:
    """Refuse requests, wait for appends, persist everything. The streams stay open. Idempotent."""
    if partition.service.is_closed:
        return
    end(partition)
    while not await _is_ready(partition, turns):
        pass
    _persist(partition, whole=False)


async def close(partition: Partition, turns: TurnBudget) -> None:
    """`seal`, then close all streams, the Meta stream last."""
    await seal(partition, turns)
    await partition.log.close()
    await partition.meta_stream.close()


def end(partition: Partition) -> None:
    """Refuse requests from now on, and wake waiting readers."""
    partition.service.close()
    partition.service_changed(wake=True)


def abandon(partition: Partition) -> None:
    """Refuse requests and drop the streams without closing them: they were deleted with the topic,
    or have another owner.
    """
    end(partition)
    for stream in partition.streams:
        stream.abandon()


# For a move


def begin_move(partition: Partition) -> None:
    """Refuse appends from now on. Reads continue."""
    partition.service.seal()
    partition.service_changed()


async def persist_for_move(partition: Partition, turns: TurnBudget) -> None:
    """Wait for appends, then write a clean checkpoint and all other state for the target;
    afterwards nothing is appended to any stream.
    """
    while partition.service.is_sealed and not await _is_ready(partition, turns):
        pass
    if not partition.service.is_sealed:
        return  # cancelled in the meantime
    _persist(partition, whole=True)
    for stream in partition.streams:
        stream.refuse_appends()


def reopen(partition: Partition) -> None:
    """Accept appends again: the move was cancelled before the streams were closed."""
    for stream in partition.streams:
        stream.accept_appends()
    partition.service.unseal()
    partition.service_changed()


def reopen_refused(partition: Partition) -> None:
    """Serve again: the move was cancelled and the controller refused to close the streams, which
    are open here at the same epoch and ends.
    """
    for stream in partition.streams:
        stream.close_refused()
    partition.service.release()
    reopen(partition)


async def _is_ready(partition: Partition, turns: TurnBudget) -> bool:
    """Wait for appends, and for a turn of the event loop with time for a checkpoint. Then encode some of the
    producers; return whether none is left, so that the checkpoint may be written in this turn.
    """
    await partition.drained()
    await turns.wait()
    if partition.has_in_flight:
        return False  # a cancelled move began again in the meantime
    turns.spend()
    return not partition.producers.rest()


def _persist(partition: Partition, *, whole: bool) -> None:
    if partition.service.failure is None:
        # If the checkpoint is refused because the cache is full, the next open reads more, and loses nothing.
        with contextlib.suppress(AppendBackpressureError):
            partition.write_clean_checkpoint(whole=whole)
