"""How a partition stops on this broker: at a stop, because the image says so, or step by step for a move, which may be taken back.

What lives here: the sequences over one partition's state and streams. Who stops when is `partition_manager` and `departures`; the streams of a move are
closed there too, many together.
"""

from __future__ import annotations

import contextlib

from s3stream.errors import AppendBackpressureError

from ponor_broker.partitions.partition import Partition

# For good


async def seal(partition: Partition) -> None:
    """Refuse requests from now on, wait for appends, persist everything. The streams stay open. Idempotent."""
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
    """Refuse requests from now on, and let those who wait for data look again."""
    partition.service.close()
    partition.service_changed(wake=True)


def abandon(partition: Partition) -> None:
    """The streams are gone (the topic was deleted), or are another's: refuse requests, and forget them without a word to the controller."""
    end(partition)
    for stream in partition.streams:
        stream.abandon()


# For a move


def begin_move(partition: Partition) -> None:
    """Take no appends from now on. Reads go on."""
    partition.service.seal()
    partition.service_changed()


async def persist_for_move(partition: Partition) -> None:
    """Wait for appends, write a clean checkpoint and all else that the target reads; from then on nothing is added to any of its streams."""
    await partition.drained()
    if not partition.service.is_sealed:
        return  # taken back meanwhile
    _persist(partition, whole=True)
    for stream in partition.streams:
        stream.refuse_appends()


def take_back(partition: Partition) -> None:
    """The move was cancelled before the streams were closed: as if nothing had happened."""
    for stream in partition.streams:
        stream.accept_appends()
    partition.service.unseal()
    partition.service_changed()


def take_back_refused(partition: Partition) -> None:
    """The move was cancelled and the controller refused to close the streams: they are open here, at the same epoch and the same ends."""
    for stream in partition.streams:
        stream.close_refused()
    partition.service.release()
    take_back(partition)


def _persist(partition: Partition, *, whole: bool) -> None:
    if partition.service.failure is None:
        # Refused (the cache is full): the next open then reads more, and loses nothing.
        with contextlib.suppress(AppendBackpressureError):
            partition.write_clean_checkpoint(whole=whole)
