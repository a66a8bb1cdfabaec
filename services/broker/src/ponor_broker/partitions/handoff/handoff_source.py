"""The source's part of a move, for many partitions together.

    residue uploaded, serving → sealed → appends durable, clean checkpoint → tail uploaded → streams closed,
    election requested → the image shows it

Partitions that leave together share uploads and operations. Until CloseStreams is sent, every handoff can be
cancelled, by the controllers or because the store does not accept the uploads. From then on, only the image
shows which broker leads. If the move is cancelled and the controller refuses CloseStreams, the image shows
the streams open here, and the partition serves again.
`partition_manager` selects the partitions and handles the image.
docs/design/moves-and-failover.md#steps-of-the-source-and-the-target explains the order of the
steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ponor.common.v1 import error_pb2
from ponor_metadata.client.errors import MetadataLagError, NodeFencedError, SessionClosedError
from ponor_metadata.nouns.streams import StreamRow
from ponor_metadata.nouns.topics import MoveRow
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import S3StreamError

from ponor_broker.partitions.handoff import partition_closing
from ponor_broker.partitions.handoff.handoff import Handoff, Stage
from ponor_broker.partitions.handoff.move_operations import (
    LeavingPartition,
    LedPartition,
    MoveController,
    shows_open,
)
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.log.stream_port import StreamSource, state_of
from ponor_broker.partitions.partition import Partition

LOG: Final = logging.getLogger("ponor.broker.partitions")

TOGETHER_MAX: Final = 128
"""Partitions that are sealed together: the target opens them together, and all of them wait for the last."""
BATCHES_IN_FLIGHT_MAX: Final = 2
"""While one batch closes, the next one uploads its residue."""
RESIDUE_ROUNDS_MAX: Final = 8
RESIDUE_ROUND_NS: Final = 200_000_000
"""The last round is the first that takes at most this long: little new data remains after it."""
ELECT_RETRY_S: Final = 0.05
ELECT_RETRY_S_MAX: Final = 2.0
CANCEL_RETRY_S: Final = 1.0


class HandoffSource:
    """The partitions of one broker that move to another one."""

    def __init__(
        self,
        streams: StreamSource,
        controller: MoveController,
        *,
        clock: Clock,
        tasks: BackgroundTasks,
        telemetry: Telemetry,
        open_here: Callable[[PartitionKey], Sequence[StreamRow]],
        on_sealed: Callable[[Partition], None],
        on_kept: Callable[[Partition], None],
        on_undecided: Callable[[PartitionKey], None],
    ) -> None:
        """`open_here` returns the streams of a partition that the image shows open at this broker.

        `on_sealed` is called when a partition stops accepting appends, and `on_kept` when it accepts them
        again. `on_undecided` is called when this broker gave up a partition's move, so that the image must be
        checked again.
        """
        self._streams = streams
        self._open_here = open_here
        self._controller = controller
        self._clock = clock
        self._tasks = tasks
        self._telemetry = telemetry
        self._handoffs: dict[PartitionKey, Handoff] = {}
        self._waiting: dict[PartitionKey, Handoff] = {}
        self._workers = 0
        self.turns: Final = partition_closing.closing_budget(clock)
        """Shared with the partitions that close without a move."""
        self._stopping = False
        self._on_sealed = on_sealed
        self._on_kept = on_kept
        self._on_undecided = on_undecided

    def __contains__(self, key: object) -> bool:
        return key in self._handoffs

    def __len__(self) -> int:
        return len(self._handoffs)

    def get(self, key: PartitionKey) -> Handoff | None:
        """Return a running handoff, for reading only."""
        return self._handoffs.get(key)

    # Changes of the image

    def begin(self, partition: Partition, row: MoveRow) -> None:
        """Start the handoff of a partition whose move the image shows. Idempotent. Partitions of
        the same event-loop turn leave together.
        """
        key = partition.identity.key
        if self._stopping or key in self._handoffs or not partition.is_writable:
            return
        handoff = Handoff(partition, row, self._clock, self._telemetry)
        self._handoffs[key] = self._waiting[key] = handoff
        if self._workers < BATCHES_IN_FLIGHT_MAX:
            self._workers += 1
            self._tasks.spawn(self._work(), "partitions leave")

    def cancelled(self, key: PartitionKey) -> None:
        """Cancel a handoff, because the image shows the move cancelled, with the same leader and epoch. A
        handoff that is closing its streams continues.
        """
        handoff = self._handoffs.get(key)
        if handoff is not None and handoff.stage is not Stage.CLOSING:
            self._reopen(handoff, "cancelled")

    def ended(self, key: PartitionKey, *, is_deleted: bool) -> bool:
        """End a handoff, because the image shows another leader or epoch, or the topic deleted; return
        whether the partition has ended here.

        If the partition has not ended, this broker did not hand it off: its streams are still open, and the
        caller must close the partition.
        """
        handoff = self._handoffs.get(key)
        if handoff is None:
            return False
        was_closing = handoff.stage is Stage.CLOSING
        self._forget(handoff, "cancelled" if is_deleted or not was_closing else "moved")
        if was_closing:
            # The image shows the outcome of CloseStreams, even if it is not answered yet.
            partition_closing.abandon(handoff.partition)
            for stream_id in handoff.unknown_streams:
                if (stream := self._streams.held(stream_id)) is not None:
                    stream.abandon()
        return was_closing

    async def close(self) -> None:
        """Start no more handoffs, cancel those that can be cancelled, and wait for those that are closing."""
        self._stopping = True
        for handoff in list(self._handoffs.values()):
            if handoff.stage is not Stage.CLOSING:
                self._reopen(handoff, "cancelled")
        while self._handoffs:
            await self._clock.sleep(ELECT_RETRY_S)

    # The steps

    async def _work(self) -> None:
        try:
            await self._clock.sleep(0)
            while self._waiting:
                batch = [self._waiting.pop(key) for key in list(self._waiting)[:TOGETHER_MAX]]
                await self._hand_off(batch)
        finally:
            self._workers -= 1

    async def _hand_off(self, batch: list[Handoff]) -> None:
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

    async def _upload_residue(self, batch: Sequence[Handoff]) -> None:
        """Upload in rounds while the partitions serve, so that little data remains for the tail: no appends
        are accepted during its upload.
        """
        for one in batch:
            one.begin_step()
        for _ in range(RESIDUE_ROUNDS_MAX):
            began_ns = self._clock.monotonic_ns()
            await self._streams.force_upload(at_once=True)
            if self._clock.monotonic_ns() - began_ns <= RESIDUE_ROUND_NS:
                break
        for one in _those(batch, Stage.WAITING):
            one.end_step("residue")

    async def _seal(self, batch: Sequence[Handoff]) -> None:
        for one in _those(batch, Stage.WAITING):
            if not one.partition.is_writable:
                self._forget(one, "failed")  # it failed in the meantime; the image will be checked
                continue
            one.stage = Stage.SEALED
            partition_closing.begin_move(one.partition)
            self._on_sealed(one.partition)
        sealed = _those(batch, Stage.SEALED)
        waiting = [one for one in sealed if one.partition.has_in_flight]
        for one in sealed:
            if one not in waiting:
                # Sequentially: there are no appends to wait for.
                await partition_closing.persist_for_move(one.partition, self.turns)
        await asyncio.gather(
            *(partition_closing.persist_for_move(one.partition, self.turns) for one in waiting)
        )
        for one in _those(batch, Stage.SEALED):
            one.end_step("drain")

    async def _upload_tail(self, batch: Sequence[Handoff]) -> None:
        while not all(_is_uploaded(one.partition) for one in _those(batch, Stage.SEALED)):
            await self._streams.force_upload(at_once=True)
        for one in _those(batch, Stage.SEALED):
            one.end_step("tail")

    def _leave(self, batch: Sequence[Handoff]) -> None:
        """Close the streams and request the elections; from now on only the image shows the outcome."""
        for one in batch:
            if one.partition.service.failure is not None:
                self._forget(one, "failed")
            else:
                one.stage = Stage.CLOSING
                one.partition.service.hold()
        closing = _those(batch, Stage.CLOSING)
        if closing:
            self._tasks.spawn(self._close_and_elect(closing), "close moved partitions")

    async def _close_and_elect(self, batch: Sequence[Handoff]) -> None:
        """Retry until the image shows the outcome. Repeats are harmless, because the operations are
        idempotent.
        """
        leaving, pause_s = list(batch), ELECT_RETRY_S
        while leaving and not await self._ask_for_elections(leaving):
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, ELECT_RETRY_S_MAX)
            leaving = _those(leaving, Stage.CLOSING)
            if len(leaving) > 1:
                # An operation closes all of its streams or none: the streams of a deleted topic
                # would block the others.
                for one in leaving:
                    await self._ask_for_elections([one])
                leaving = _those(leaving, Stage.CLOSING)

    async def _ask_for_elections(self, batch: Sequence[Handoff]) -> bool:
        """Send one request; return whether nothing remains to be requested."""
        try:
            outcomes = await self._controller.leave([self._leaving(one) for one in batch])
        except (SessionClosedError, NodeFencedError):
            return True
        except (OperationError, MetadataLagError) as error:
            LOG.warning("the election of %d moved partitions failed, retrying: %s", len(batch), error)
            return False
        for one, outcome in zip(batch, outcomes, strict=True):
            if outcome.is_done:
                continue
            one.was_refused = True
            LOG.info("the election of %s was refused: %s", one.partition.identity, outcome.message)
            if outcome.code == error_pb2.ERROR_CODE_NO_MOVE and self._is_all_open(one):
                self._reopen_refused(one)
        return all(outcome.is_done for outcome in outcomes)

    def _is_all_open(self, one: Handoff) -> bool:
        """Return whether the image shows all streams of a partition open here, at the reported
        epochs and ends: then no other broker can lead it.

        `MoveController.leave` has returned, so no CloseStreams is in flight, and the image shows
        the effects of all of them.
        """
        if one.stage is not Stage.CLOSING or one.partition.service.failure is not None:
            return False
        rows = self._open_here(one.partition.identity.key)
        return shows_open(rows, [stream.end() for stream in one.partition.streams])

    def _reopen_refused(self, one: Handoff) -> None:
        """Serve again, because the move was cancelled and the streams were not closed. Without this, the
        partition would refuse requests forever.
        """
        LOG.warning(
            "%s stays here: its move was cancelled, and its streams were not closed", one.partition.identity
        )
        self._forget(one, "cancelled")
        partition_closing.reopen_refused(one.partition)
        self._on_kept(one.partition)
        self._on_undecided(one.partition.identity.key)

    def _leaving(self, one: Handoff) -> LeavingPartition:
        """Return the ends of all streams, and the offset from which the next leader reads the Meta stream.

        A refused election may be due to an open stream that was opened for the partition and not added to it.
        Nothing appends to such a stream, so it is closed at the end that the image shows. If it stayed open,
        no other broker could lead the partition.
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
            unknown = [
                row for row in self._open_here(one.partition.identity.key) if row.stream_id not in known
            ]
            one.unknown_streams.update((row.stream_id, None) for row in unknown)
            ends += map(state_of, unknown)
        return LeavingPartition(one.name, ends, starts)

    # Cancellation

    def _give_up(self, batch: Sequence[Handoff], error: Exception) -> None:
        """The store, or the log, did not accept the uploads: keep the partitions and cancel their moves."""
        kept = [one for one in batch if one.stage in {Stage.WAITING, Stage.SEALED}]
        reason = str(error) or "the uploads of the source did not complete in time"
        for one in kept:
            self._reopen(one, "failed")
        if kept:
            LOG.warning("%d partitions stay here: %s", len(kept), reason)
            self._tasks.spawn(self._cancel([one.name for one in kept], reason), "cancel moves")

    async def _cancel(self, partitions: Sequence[LedPartition], reason: str) -> None:
        try:
            await self._controller.cancel(partitions, reason)
        except (OperationError, SessionClosedError, NodeFencedError, MetadataLagError) as error:
            LOG.warning("could not cancel moves: %s", error)
            await self._clock.sleep(CANCEL_RETRY_S)
        for key, _ in partitions:
            self._on_undecided(key)

    def _reopen(self, handoff: Handoff, result: str) -> None:
        partition, was_sealed = handoff.partition, handoff.stage is Stage.SEALED
        self._forget(handoff, result)
        if was_sealed and partition.service.failure is None:
            partition_closing.reopen(partition)
            self._on_kept(partition)

    def _forget(self, handoff: Handoff, result: str) -> None:
        key = handoff.partition.identity.key
        self._waiting.pop(key, None)
        if self._handoffs.get(key) is handoff:
            del self._handoffs[key]
        handoff.over(result)
        LOG.debug("%s: %s, %s", handoff.partition.identity, result, handoff.took_ms)


def _those(batch: Sequence[Handoff], stage: Stage) -> list[Handoff]:
    return [one for one in batch if one.stage is stage]


def _is_uploaded(partition: Partition) -> bool:
    return all(stream.committed_offset >= stream.next_offset for stream in partition.streams)
