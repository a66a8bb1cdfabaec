"""Writer of transaction markers: appends them to partitions of this broker, and waits until they are durable.

The local coordinator and WriteTxnMarkers requests of other brokers use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.turns import TurnBudget
from s3stream.errors import S3StreamError

from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.in_flight import OnSettled
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.partition_transactions import TransactionMarker

NO_ERROR: Final = ErrorCode.NONE
TOGETHER_MAX: Final = 256
"""Markers of a request that are in flight at a time; the next ones are appended when all have ended."""
TURN_NS_MAX: Final = 4_000_000
"""A turn of the event loop begins no further part of a request after this time."""
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


class PlacedMarker(NamedTuple):
    """A marker and its partition."""

    marker: TransactionMarker
    topic: str
    partition: int


class MarkerWriter:
    """Appends markers. The caller bounds the number of requests."""

    def __init__(self, partitions: PartitionManager, streams: TxnStreams, clock: Clock) -> None:
        self._partitions = partitions
        # Shared by all requests: the markers of each may all be refused without a wait. A request waits again
        # for each of its parts, so that a large one does not delay the others.
        self._turn = TurnBudget(clock, count_max=TOGETHER_MAX, duration_ns_max=TURN_NS_MAX)
        self._streams = streams
        self._adding: dict[PartitionKey, _Creation] = {}
        """Txn streams that are being created: one per partition at a time."""

    async def write(
        self, markers: Iterable[PlacedMarker], is_wanted: Callable[[], bool] = lambda: True
    ) -> list[ErrorCode]:
        """Append markers, in turns of the event loop. When all are durable or refused, return NONE or the
        error for the coordinator for each of them.

        `is_wanted` is called immediately before each append. If it returns False, because the coordinator no
        longer waits for the result, nothing is appended, and the result is REQUEST_TIMED_OUT. A marker that
        was appended takes effect even if this call is cancelled.

        UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT and storage errors are
        retriable; TRANSACTION_COORDINATOR_FENCED and INVALID_PRODUCER_EPOCH are final.
        """
        codes: list[ErrorCode] = []
        rest = iter(markers)
        while part := list(islice(rest, TOGETHER_MAX)):
            codes += await self._write_part(part, is_wanted)
        return codes

    async def _write_part(
        self, markers: Sequence[PlacedMarker], is_wanted: Callable[[], bool]
    ) -> list[ErrorCode]:
        # A task for each marker would cost as much as its append.
        outcomes = _Outcomes(len(markers))
        later: dict[Partition, list[_Pending]] = {}

        def append() -> None:
            for number, placed in enumerate(markers):
                pending = _Pending(placed.marker, partial(outcomes.settle, number))
                self._turn.spend()
                try:
                    partition = self._partitions.find(placed.topic, placed.partition)
                except (PartitionError, S3StreamError) as error:
                    pending.settled(error)
                    continue
                if partition.transactions.needs_stream(pending.marker) and partition.is_writable:
                    later.setdefault(partition, []).append(pending)
                else:
                    _append(partition, pending, is_wanted)

        await self._in_turn(append)
        if later:
            await asyncio.gather(
                *(self._write_after_stream(one, pending, is_wanted) for one, pending in later.items())
            )
        await outcomes.wait()
        return outcomes.codes

    async def _write_after_stream(
        self, partition: Partition, markers: Sequence[_Pending], is_wanted: Callable[[], bool]
    ) -> None:
        """Create the partition's Txn stream, and append the markers of a part that need it."""
        try:
            while partition.is_writable and any(map(partition.transactions.needs_stream, _markers(markers))):
                await self._add_stream(partition)
        except (PartitionError, S3StreamError) as error:
            for pending in markers:
                pending.settled(error)
            return

        def append() -> None:
            for pending in markers:
                self._turn.spend()
                if partition.is_writable and partition.transactions.needs_stream(pending.marker):
                    # The partition began a move, which ended the loop above, and the move was cancelled.
                    pending.settled(PartitionError(ErrorCode.REQUEST_TIMED_OUT, "there is no Txn stream yet"))
                else:
                    _append(partition, pending, is_wanted)

        await self._in_turn(append)

    async def _in_turn(self, append: Callable[[], None]) -> None:
        """Call `append` in a turn whose budget is not spent, after the appends of earlier calls. If this call
        is cancelled first, `append` is not called.
        """
        if self._turn.is_free:
            append()
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if ended.done():
                return  # the request was cancelled
            try:
                append()
            except Exception as error:  # noqa: BLE001 - raised below
                ended.set_exception(error)
            else:
                ended.set_result(None)

        self._turn.call_later(run)
        await ended

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


class _Pending(NamedTuple):
    """A marker that is not appended yet, and the callback of its result."""

    marker: TransactionMarker
    settled: OnSettled


def _markers(pending: Iterable[_Pending]) -> Iterator[TransactionMarker]:
    return (one.marker for one in pending)


def _append(partition: Partition, pending: _Pending, is_wanted: Callable[[], bool]) -> None:
    """Append a marker, or settle it with the error."""
    try:
        if not is_wanted():
            raise PartitionError(
                ErrorCode.REQUEST_TIMED_OUT, "the coordinator no longer waits for the marker"
            )
        partition.append_marker(pending.marker, pending.settled)
    except (PartitionError, S3StreamError) as error:
        pending.settled(error)


class _Outcomes:
    """The results of the markers of one part, in their order."""

    __slots__ = ("_all_settled", "_left", "codes")

    def __init__(self, count: int) -> None:
        self.codes = [NO_ERROR] * count
        self._left = count
        self._all_settled: asyncio.Future[None] | None = None

    def settle(self, number: int, error: BaseException | None) -> None:
        """Note one result."""
        if error is not None:
            self.codes[number] = storage_error(error).code
        self._left -= 1
        if self._left == 0 and self._all_settled is not None and not self._all_settled.done():
            self._all_settled.set_result(None)

    async def wait(self) -> None:
        """Return when there is a result for every marker."""
        if self._left:
            self._all_settled = asyncio.get_running_loop().create_future()
            await self._all_settled
