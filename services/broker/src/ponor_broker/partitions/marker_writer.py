"""Writer of transaction markers: appends them to partitions of this broker, and waits until they are durable.

The local coordinator and WriteTxnMarkers requests of other brokers use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from ponor_kafka.errors import ErrorCode
from s3stream.errors import S3StreamError

from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.partition_transactions import TransactionMarker

NO_ERROR: Final = ErrorCode.NONE
STREAM_S_MAX: Final = 1.0
"""How long markers wait for the creation of a Txn stream. It needs the controller, which may be unavailable
for seconds, and the other markers of the same request would wait, too."""


class TxnStreams(Protocol):
    """The part of `OwnedStreams` that `MarkerWriter` uses."""

    async def add_txn_stream(self, partition: Partition) -> None: ...


class _Creation(NamedTuple):
    """A Txn stream that is being created, and the loop's time until which markers wait for it."""

    task: asyncio.Task[None]
    wait_until: float


class MarkerWriter:
    """Appends markers. The caller bounds the number of markers in flight."""

    def __init__(self, partitions: PartitionManager, streams: TxnStreams) -> None:
        self._partitions = partitions
        self._streams = streams
        self._adding: dict[PartitionKey, _Creation] = {}
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

        UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT and storage errors are
        retriable; TRANSACTION_COORDINATOR_FENCED and INVALID_PRODUCER_EPOCH are final.
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
        """Create the partition's Txn stream, or wait for a running creation.

        Raises:
            PartitionError: REQUEST_TIMED_OUT after `STREAM_S_MAX`; the creation continues.
        """
        key = partition.identity.key
        creation = self._adding.get(key)
        if creation is None:
            task = asyncio.ensure_future(self._streams.add_txn_stream(partition))
            creation = self._adding[key] = _Creation(task, asyncio.get_running_loop().time() + STREAM_S_MAX)
            task.add_done_callback(lambda done: self._added(key, done))
        try:
            async with asyncio.timeout_at(creation.wait_until):
                await asyncio.shield(creation.task)
        except TimeoutError as error:
            raise PartitionError(
                ErrorCode.REQUEST_TIMED_OUT, f"{partition.identity}: its Txn stream is not created yet"
            ) from error

    def _added(self, key: PartitionKey, done: asyncio.Task[None]) -> None:
        del self._adding[key]
        if not done.cancelled():
            done.exception()  # waiting callers raise the error; asyncio need not log it if there are none
