"""Partitions that leave this broker because they move: the source's part of a move, for many of them together.

    residue uploaded, serving → sealed → appends durable, clean checkpoint → rest uploaded → streams closed, election asked for → the image shows it

What lives here: the order of these steps. Partitions that leave together share uploads and operations. Until CloseStreams is on its way every departure
can be taken back, by a cancel or because the store does not take the uploads; from then on only the image tells who leads. If the move is cancelled and the
controller refuses CloseStreams, the image shows the streams open here, and the partition is taken back too. Which partitions leave, and
what follows from the image, is `partition_manager`'s. docs/design/moves-and-failover.md#steps-of-the-source-and-the-target says why the steps stand in this order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from ponor.common.v1 import error_pb2
from ponor_metadata.client.errors import MetadataLagError, NodeFencedError, SessionClosedError
from ponor_metadata.nouns.streams import StreamRow
from ponor_metadata.nouns.topics import MoveRow
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import S3StreamError
from s3stream.ports import StreamState

from ponor_broker.partitions.handoff import partition_closing
from ponor_broker.partitions.handoff.handoff import Departure, Stage
from ponor_broker.partitions.handoff.move_operations import LeavingPartition, LedPartition, MoveOutcome
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.log.stream_port import PartitionStream
from ponor_broker.partitions.partition import Partition

LOG: Final = logging.getLogger("ponor.broker.partitions")

TOGETHER_MAX: Final = 128
"""Partitions that are sealed together: the target opens them together too, and all of them wait for the last."""
BATCHES_IN_FLIGHT_MAX: Final = 2
"""While one batch closes, the next one uploads its residue."""
RESIDUE_ROUNDS_MAX: Final = 8
RESIDUE_ROUND_NS: Final = 200_000_000
"""A round of this length leaves little behind."""
ELECT_RETRY_S: Final = 0.05
ELECT_RETRY_S_MAX: Final = 2.0
CANCEL_RETRY_S: Final = 1.0


class MoveController(Protocol):
    """`MoveOperations`, as far as it is needed here."""

    def leave(self, leaving: Sequence[LeavingPartition]) -> Awaitable[list[MoveOutcome]]: ...

    def cancel(self, partitions: Sequence[LedPartition], reason: str) -> Awaitable[list[MoveOutcome]]: ...


class Uploads(Protocol):
    """`StreamSource`, as far as it is needed here."""

    def held(self, stream_id: StreamId) -> PartitionStream | None: ...

    async def force_upload(self, *, at_once: bool = False) -> None: ...


class Departures:
    """See the module's docstring. `on_sealed` and `on_kept` are called when a partition stops taking appends, and when it goes on after that."""

    def __init__(
        self,
        uploads: Uploads,
        controller: MoveController,
        *,
        clock: Clock,
        tasks: BackgroundTasks,
        telemetry: Telemetry,
        open_here: Callable[[PartitionKey], Sequence[StreamRow]],
    ) -> None:
        """See the class. `open_here` tells which streams of a partition are open at this broker as the image shows it."""
        self._uploads = uploads
        self._open_here = open_here
        self._controller = controller
        self._clock = clock
        self._tasks = tasks
        self._telemetry = telemetry
        self._departures: dict[PartitionKey, Departure] = {}
        self._waiting: dict[PartitionKey, Departure] = {}
        self._workers = 0
        self._stopping = False
        self.on_sealed: Callable[[Partition], None] = _nobody
        self.on_kept: Callable[[Partition], None] = _nobody
        self.on_undecided: Callable[[PartitionKey], None] = _nobody
        """Called where this broker gave a move up: the image has to be looked at again."""

    def __contains__(self, key: object) -> bool:
        return key in self._departures

    def __len__(self) -> int:
        return len(self._departures)

    def get(self, key: PartitionKey) -> Departure | None:
        """One that is under way, for looking at it only."""
        return self._departures.get(key)

    # What the image says

    def begin(self, partition: Partition, row: MoveRow) -> None:
        """The image shows the move. Idempotent; what comes in the same turn of the loop leaves together."""
        key = partition.identity.key
        if self._stopping or key in self._departures or not partition.is_writable:
            return
        departure = Departure(partition, row, self._clock, self._telemetry)
        self._departures[key] = self._waiting[key] = departure
        if self._workers < BATCHES_IN_FLIGHT_MAX:
            self._workers += 1
            self._tasks.spawn(self._work(), "partitions leave")

    def cancelled(self, key: PartitionKey) -> None:
        """The image shows no move any more, and the same leader at the same epoch. With CloseStreams on its way there is more to come."""
        departure = self._departures.get(key)
        if departure is not None and departure.stage is not Stage.CLOSING:
            self._take_back(departure, "cancelled")

    def ended(self, key: PartitionKey, *, is_deleted: bool) -> bool:
        """The image shows another leader, or another epoch, or that the topic is gone. Returns whether that ends the partition here.

        It does not where its streams are still open: then this broker did not give it away, and has to close it.
        """
        departure = self._departures.get(key)
        if departure is None:
            return False
        was_closing = departure.stage is Stage.CLOSING
        self._forget(departure, "cancelled" if is_deleted or not was_closing else "moved")
        if was_closing:
            # If CloseStreams is not answered yet, its outcome is known by this.
            partition_closing.abandon(departure.partition)
            for stream_id in departure.strangers:
                if (stream := self._uploads.held(stream_id)) is not None:
                    stream.abandon()
        return was_closing

    async def close(self) -> None:
        """The broker stops: nothing begins any more, what can be taken back is, and what is closing has ended when this returns."""
        self._stopping = True
        for departure in list(self._departures.values()):
            if departure.stage is not Stage.CLOSING:
                self._take_back(departure, "cancelled")
        while self._departures:
            await self._clock.sleep(ELECT_RETRY_S)

    # The steps

    async def _work(self) -> None:
        try:
            await self._clock.sleep(0)
            while self._waiting:
                batch = [self._waiting.pop(key) for key in list(self._waiting)[:TOGETHER_MAX]]
                await self._depart(batch)
        finally:
            self._workers -= 1

    async def _depart(self, batch: list[Departure]) -> None:
        try:
            now_ns = self._clock.monotonic_ns()
            async with asyncio.timeout(min(one.residue_ms_left(now_ns) for one in batch) / 1000):
                await self._upload_residue(batch)
            async with asyncio.timeout(min(one.sealed_ms_max for one in batch) / 1000):
                await self._seal(batch)
                await self._upload_tail(batch)
        except (TimeoutError, S3StreamError) as error:
            self._give_up(batch, error)
        else:
            self._leave(_those(batch, Stage.SEALED))

    async def _upload_residue(self, batch: Sequence[Departure]) -> None:
        """In rounds, because the partitions serve: what came during a long upload would make the next one, with nobody served, long too."""
        for one in batch:
            one.begin_step()
        for _ in range(RESIDUE_ROUNDS_MAX):
            began_ns = self._clock.monotonic_ns()
            await self._uploads.force_upload(at_once=True)
            if self._clock.monotonic_ns() - began_ns <= RESIDUE_ROUND_NS:
                break
        for one in _those(batch, Stage.WAITING):
            one.end_step("residue")

    async def _seal(self, batch: Sequence[Departure]) -> None:
        for one in _those(batch, Stage.WAITING):
            if not one.partition.is_writable:
                self._forget(one, "failed")  # it failed meanwhile; the image will be looked at
                continue
            one.stage = Stage.SEALED
            partition_closing.begin_move(one.partition)
            self.on_sealed(one.partition)
        sealed = _those(batch, Stage.SEALED)
        waiting = [one for one in sealed if one.partition.has_in_flight]
        for one in sealed:
            if one not in waiting:
                await partition_closing.persist_for_move(
                    one.partition
                )  # at once: nothing is to be waited for
        await asyncio.gather(*(partition_closing.persist_for_move(one.partition) for one in waiting))
        for one in _those(batch, Stage.SEALED):
            one.end_step("drain")

    async def _upload_tail(self, batch: Sequence[Departure]) -> None:
        while not all(_is_uploaded(one.partition) for one in _those(batch, Stage.SEALED)):
            await self._uploads.force_upload(at_once=True)
        for one in _those(batch, Stage.SEALED):
            one.end_step("tail")

    def _leave(self, batch: Sequence[Departure]) -> None:
        """All is uploaded: the streams are closed and the elections asked for, and only the image tells how that ends."""
        for one in batch:
            if one.partition.service.failure is not None:
                self._forget(one, "failed")
            else:
                one.stage = Stage.CLOSING
                one.partition.service.hold()
        closing = _those(batch, Stage.CLOSING)
        if closing:
            self._tasks.spawn(self._close_and_elect(closing), "close moved partitions")

    async def _close_and_elect(self, batch: Sequence[Departure]) -> None:
        """Ask until the image shows the end. Repeats do no harm: what is closed is closed, who is elected is elected."""
        leaving, pause_s = list(batch), ELECT_RETRY_S
        while leaving and not await self._ask_for_elections(leaving):
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, ELECT_RETRY_S_MAX)
            leaving = _those(leaving, Stage.CLOSING)
            if len(leaving) > 1:
                # All streams of an operation are closed or none: one of a topic that was deleted holds up the others.
                for one in leaving:
                    await self._ask_for_elections([one])
                leaving = _those(leaving, Stage.CLOSING)

    async def _ask_for_elections(self, batch: Sequence[Departure]) -> bool:
        """Returns whether there is nothing more to ask for."""
        try:
            outcomes = await self._controller.leave([self._leaving(one) for one in batch])
        except (SessionClosedError, NodeFencedError):
            return True
        except (OperationError, MetadataLagError) as error:
            LOG.warning("%d moved partitions were not elected, asking again: %s", len(batch), error)
            return False
        for one, outcome in zip(batch, outcomes, strict=True):
            if outcome.is_done:
                continue
            one.was_refused = True
            LOG.info("%s was not elected: %s", one.partition.identity, outcome.message)
            if outcome.code == error_pb2.ERROR_CODE_NO_MOVE and self._is_all_open(one):
                self._take_back_refused(one)
        return all(outcome.is_done for outcome in outcomes)

    def _is_all_open(self, one: Departure) -> bool:
        """Whether the image shows all streams of a partition open here, at the epochs and ends that were told: then nobody else can lead it.

        `MoveController.leave` returned, so no CloseStreams is under way, and the image shows what each of them did.
        """
        if one.stage is not Stage.CLOSING or one.partition.service.failure is not None:
            return False
        shown = {
            row.stream_id: (row.stream_epoch, row.end_offset)
            for row in self._open_here(one.partition.identity.key)
        }
        ends = [stream.end() for stream in one.partition.streams]
        return all(shown.get(end.stream_id) == (end.epoch, end.end_offset) for end in ends)

    def _take_back_refused(self, one: Departure) -> None:
        """The move was cancelled and the streams were not closed: without this the partition would be held for ever."""
        LOG.warning(
            "%s stays: its move was cancelled and its streams were not closed", one.partition.identity
        )
        self._forget(one, "cancelled")
        partition_closing.take_back_refused(one.partition)
        self.on_kept(one.partition)
        self.on_undecided(one.partition.identity.key)

    def _leaving(self, one: Departure) -> LeavingPartition:
        """What the controller is told: where all streams end, and where the Meta stream begins for its next reader.

        Where that was not enough, a stream is open that the partition does not know (it was opened for it and not taken by it). Nobody writes into it, so it
        ends where the image says; left open it would hold the partition here for ever.
        """
        meta = one.partition.meta_stream
        ends = [stream.end() for stream in one.partition.streams]
        starts = [
            replace(end, start_offset=meta.needed_from)
            for end in ends
            if end.stream_id == meta.stream.stream_id and meta.needed_from > end.start_offset
        ]
        if one.was_refused:
            known = {end.stream_id for end in ends}
            strangers = [
                row for row in self._open_here(one.partition.identity.key) if row.stream_id not in known
            ]
            one.strangers.update((row.stream_id, None) for row in strangers)
            ends += [
                StreamState(row.stream_id, row.stream_epoch, row.start_offset, row.end_offset)
                for row in strangers
            ]
        return LeavingPartition(one.name, ends, starts)

    # Taking back

    def _give_up(self, batch: Sequence[Departure], error: Exception) -> None:
        """The store, or the log, does not take what has to be uploaded: the partitions stay, and the controller is told."""
        kept = [one for one in batch if one.stage in {Stage.WAITING, Stage.SEALED}]
        reason = str(error) or "the uploads of the source did not end in time"
        for one in kept:
            self._take_back(one, "failed")
        if kept:
            LOG.warning("%d partitions do not leave: %s", len(kept), reason)
            self._tasks.spawn(self._cancel([one.name for one in kept], reason), "cancel moves")

    async def _cancel(self, partitions: Sequence[LedPartition], reason: str) -> None:
        try:
            await self._controller.cancel(partitions, reason)
        except (OperationError, SessionClosedError, NodeFencedError, MetadataLagError) as error:
            LOG.warning("moves were not cancelled: %s", error)
            await self._clock.sleep(CANCEL_RETRY_S)
        for key, _ in partitions:
            self.on_undecided(key)

    def _take_back(self, departure: Departure, result: str) -> None:
        partition, was_sealed = departure.partition, departure.stage is Stage.SEALED
        self._forget(departure, result)
        if was_sealed and partition.service.failure is None:
            partition_closing.take_back(partition)
            self.on_kept(partition)

    def _forget(self, departure: Departure, result: str) -> None:
        key = departure.partition.identity.key
        self._waiting.pop(key, None)
        if self._departures.get(key) is departure:
            del self._departures[key]
        departure.over(result)
        LOG.debug("%s: %s, %s", departure.partition.identity, result, departure.took_ms)


def _those(batch: Sequence[Departure], stage: Stage) -> list[Departure]:
    return [one for one in batch if one.stage is stage]


def _is_uploaded(partition: Partition) -> bool:
    return all(stream.committed_offset >= stream.next_offset for stream in partition.streams)


def _nobody(_: object) -> None:
    """Before anybody listens."""
