"""Release of partitions that this broker leads but did not open: closes streams that attempts
opened, and requests the election.

A partition is released if it is to move again before it serves here, or if one of its streams was
closed at the present epoch already, so that only a new epoch can open it. Without a move the
controllers elect this broker again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ponor.common.v1 import error_pb2
from ponor_metadata.client.errors import MetadataLagError, NodeFencedError, SessionClosedError
from ponor_metadata.nouns.streams import StreamRow
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock

from ponor_broker.partitions.handoff.move_operations import (
    LeavingPartition,
    LedPartition,
    MoveController,
    shows_open,
)
from ponor_broker.partitions.handoff.opening import Opening
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.log.stream_port import PartitionStream, StreamSource, state_of

LOG: Final = logging.getLogger("ponor.broker.partitions")
UPLOAD_S_MAX: Final = 3.0
"""Longest upload of data that attempts appended; much less than the time after which the
controllers treat this broker as stuck."""
ASK_RETRY_S: Final = 0.05
ASK_RETRY_S_MAX: Final = 2.0


class TargetRelease:
    """Releases partitions that `handoff_target` selects."""

    def __init__(
        self,
        streams: StreamSource,
        controller: MoveController,
        clock: Clock,
        *,
        open_here: Callable[[PartitionKey], Sequence[StreamRow]],
    ) -> None:
        """`open_here` returns the streams of a partition that the image shows open at this broker."""
        self._streams = streams
        self._controller = controller
        self._clock = clock
        self._open_here = open_here

    async def upload(self, opening: Opening) -> None:
        """Upload what attempts appended. Until the return the partition may still be opened here.

        Raises:
            TimeoutError: the store did not accept the upload in time.
            s3stream.errors.S3StreamError: the upload failed.
        """
        held = self._held(opening)
        async with asyncio.timeout(UPLOAD_S_MAX):
            while any(stream.committed_offset < stream.next_offset for stream in held):
                await self._streams.force_upload(at_once=True)

    async def close_and_elect(self, opening: Opening, is_over: Callable[[], bool]) -> None:
        """Retry until `is_over` returns True, which means that the image shows the result.

        Returns earlier in two cases. First, if the election is refused and this broker has no stream left to
        close; then a stream of another owner blocks the election. Second, if the move was cancelled and the
        streams are still open here; then the partition can be opened again.
        """
        pause_s = ASK_RETRY_S
        while not is_over():
            leaving = self._leaving(opening)
            try:
                (outcome,) = await self._controller.leave([leaving])
            except (SessionClosedError, NodeFencedError):
                return
            except (OperationError, MetadataLagError) as error:
                LOG.warning("%s was not released, retrying: %s", opening.request.identity, error)
            else:
                if not outcome.is_done:
                    LOG.info("%s was not released: %s", opening.request.identity, outcome.message)
                    if not leaving.ends or (
                        outcome.code == error_pb2.ERROR_CODE_NO_MOVE
                        and shows_open(self._open_here(opening.key), leaving.ends)
                    ):
                        return
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, ASK_RETRY_S_MAX)

    async def cancel_moves(self, partitions: Sequence[LedPartition], reason: str) -> None:
        """Cancel moves of partitions whose streams cannot be closed now."""
        try:
            await self._controller.cancel(partitions, reason)
        except (OperationError, SessionClosedError, NodeFencedError, MetadataLagError) as error:
            (topic_id, index), _ = partitions[0]
            LOG.warning(
                "could not cancel the moves of %d partitions (the first is partition %d of topic %s): %s",
                len(partitions),
                index,
                topic_id.hex(),
                error,
            )

    def abandon(self, opening: Opening) -> None:
        """Drop the streams that attempts opened: they were closed or deleted, or have another owner."""
        for stream in self._held(opening):
            stream.abandon()

    def _held(self, opening: Opening) -> list[PartitionStream]:
        held = map(self._streams.held, opening.stream_ids)
        return [stream for stream in held if stream is not None]

    def _leaving(self, opening: Opening) -> LeavingPartition:
        """Return the ends of the streams that are open here: from memory for streams that this process holds,
        from the image for all others.
        """
        ends = [stream.end() for stream in self._held(opening)]
        known = {end.stream_id for end in ends}
        ends += [state_of(row) for row in self._open_here(opening.key) if row.stream_id not in known]
        return LeavingPartition(opening.name, ends, [])
