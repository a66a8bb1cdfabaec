"""Writer of transaction markers: appends them to partitions of this broker, and waits until they are durable.

The local coordinator and WriteTxnMarkers requests of other brokers use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from ponor_kafka.errors import ErrorCode
from s3stream.errors import S3StreamError

from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.partition_transactions import TransactionMarker

NO_ERROR: Final = ErrorCode.NONE


class TxnStreams(Protocol):
    """The part of `OwnedStreams` that `MarkerWriter` uses."""

    async def add_txn_stream(self, partition: Partition) -> None: ...


class MarkerWriter:
    """Appends markers. The caller bounds the number of markers in flight."""

    def __init__(self, partitions: PartitionManager, streams: TxnStreams) -> None:
        self._partitions = partitions
        self._streams = streams
        self._adding: dict[PartitionKey, asyncio.Task[None]] = {}
        """Txn streams that are being created: one per partition at a time."""

    async def write(
        self,
        marker: TransactionMarker,
        topic: str,
        index: int,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> ErrorCode:
        """Append a marker to a partition; return NONE when it is durable, or the error for the coordinator.

        `is_wanted` is called immediately before the append. If it returns False, because the coordinator no
        longer waits for the result, nothing is appended, and the result is REQUEST_TIMED_OUT.

        UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER and storage errors are retriable;
        TRANSACTION_COORDINATOR_FENCED and INVALID_PRODUCER_EPOCH are final.
        """
        try:
            partition = self._partitions.find(topic, index)
            while partition.transactions.needs_stream(marker) and partition.is_writable:
                await self._add_stream(partition)
            if not is_wanted():
                return ErrorCode.REQUEST_TIMED_OUT
            await partition.append_marker(marker)
        except (PartitionError, S3StreamError) as error:
            return storage_error(error).code
        return NO_ERROR

    async def _add_stream(self, partition: Partition) -> None:
        """Create the partition's Txn stream, or wait for a running creation."""
        key = partition.identity.key
        running = self._adding.get(key)
        if running is None:
            running = asyncio.ensure_future(self._streams.add_txn_stream(partition))
            self._adding[key] = running
            running.add_done_callback(lambda done: self._added(key, done))
        await asyncio.shield(running)

    def _added(self, key: PartitionKey, done: asyncio.Task[None]) -> None:
        del self._adding[key]
        if not done.cancelled():
            done.exception()  # waiting callers raise it; without any, it must not be logged as unhandled
