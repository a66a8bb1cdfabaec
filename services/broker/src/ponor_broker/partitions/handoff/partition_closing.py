"""Sequences that stop a partition: at a stop, because the image shows another leader, or for a
move, which may be cancelled.

`partition_manager` and `handoff_source` call them; the streams of moved partitions are closed
there, many together.
"""

from __future__ import annotations

import contextlib

from s3stream.errors import AppendBackpressureError

from ponor_broker.partitions.partition import Partition

# Permanently


async def seal(partition: Partition) -> None:
    """Refuse requests, wait for appends, persist everything. The streams stay open. Idempotent."""
    if partition.service.is_closed:
        return
    end(partition)
    await partition.drained()
    _persist(partition, whole=False)


async def close(partition: Partition) -> None:
    """`seal`, then close all streams, the Meta stream last."""
    await seal(partition)
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


async def persist_for_move(partition: Partition) -> None:
    """Wait for appends, then write a clean checkpoint and all other state for the target;
    afterwards nothing is appended to any stream.
    """
    await partition.drained()
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


def _persist(partition: Partition, *, whole: bool) -> None:
    if partition.service.failure is None:
        # If the checkpoint is refused because the cache is full, the next open reads more, and loses nothing.
        with contextlib.suppress(AppendBackpressureError):
            partition.write_clean_checkpoint(whole=whole)
