"""Fetch: long poll over partitions, hot from memory, cold from the object store.

What lives here: when an answer is due. A pass over the partitions (`fetch_reading`) finds what memory has; enough of it, an error, or no time
left: answered at once. Otherwise the request is parked until appends bring enough or its time is over. Data that is in objects only is read on
a concurrency of its own, so that readers of old data never hold up those at the end.

There are no fetch sessions: every answer carries session id 0, which tells clients to send full requests (KIP-227).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from ponor_kafka.codec import decode_as
from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_response import build_fetch_response
from ponor_kafka.headers import RequestHeader
from ponor_kafka.messages.fetch import FetchRequest
from s3stream.errors import ObjectCorruptError, S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.answer_backlog import AnswerBacklog
from ponor_broker.connection import Response
from ponor_broker.dispatch import Reply
from ponor_broker.handlers.fetch_reading import (
    READ_COMMITTED,
    FetchPart,
    FetchPass,
    FetchReader,
    describe,
    group_by_topic,
)
from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.stream_reading import StreamUnreadableError
from ponor_broker.settings import BrokerSettings

LOG: Final = logging.getLogger("ponor.broker.fetch")
REPORTED_MAX: Final = 256
"""Distinct lines about unreadable objects that are remembered, so that each is said once."""
COLD_BESIDE_HOT_MS: Final = 100
NO_SESSION: Final = 0
FULL_EPOCHS: Final = (-1, 0)
"""Session epochs of a request that is complete in itself."""


class ColdReads:
    """The bound on reads from the object store on behalf of Fetch: so many at a time, so many waiting, each so long."""

    def __init__(self, *, in_flight_max: int, waiting_max: int, ms_max: int) -> None:
        self._slots = asyncio.Semaphore(in_flight_max)
        self._waiting_max = waiting_max
        self._ms_max = ms_max
        self._reported: dict[str, None] = {}
        self._waiting = 0

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, *, ms_max: int | None
    ) -> list[StreamRecord] | PartitionError:
        """Whole batches from the one that contains `offset` on, or why there are none.

        With `ms_max` there is something to answer without them: not in time then means none. What a read that was given up has asked of the
        object store still arrives in the block cache, so the next one gets further.
        """
        if self._waiting >= self._waiting_max:
            return PartitionError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self._waiting} reads of old data wait already"
            )
        self._waiting += 1
        limit_ms = self._ms_max if ms_max is None else min(ms_max, self._ms_max)
        try:
            async with asyncio.timeout(limit_ms / 1000), self._slots:
                return await partition.read(offset, bytes_max)
        except TimeoutError as error:
            return storage_error(error) if ms_max is None else []
        except (PartitionError, S3StreamError) as error:
            self._report(error)
            return storage_error(error)
        finally:
            self._waiting -= 1

    def _report(self, error: Exception) -> None:
        """Damage and absence are for a person to mend: one line each, not one per retry of a consumer."""
        line = str(error)
        if not isinstance(error, ObjectCorruptError | StreamUnreadableError) or line in self._reported:
            return
        if len(self._reported) >= REPORTED_MAX:
            self._reported.clear()
        self._reported[line] = None
        LOG.error("a fetch cannot be served: %s; `ponor object verify` checks the objects", line)


@dataclass(frozen=True, slots=True)
class _Job:
    """One request on its way to its answer."""

    request: FetchRequest
    version: int
    reply: Reply


class FetchHandler:
    """Fulfils `dispatch.RawHandler`."""

    version_min = 4
    version_max = 18

    def __init__(
        self,
        partitions: PartitionManager,
        backlog: AnswerBacklog,
        cold_reads: ColdReads,
        settings: BrokerSettings,
    ) -> None:
        self._reader = FetchReader(partitions)
        self._backlog = backlog
        self._cold_reads = cold_reads
        self._settings = settings
        self._parked = 0

    def start(
        self, frame: bytearray, header: RequestHeader, reply: Reply
    ) -> Response | asyncio.Future[Response]:
        """Answer at once if an answer is due.

        Raises:
            KafkaWireError: malformed.
        """
        request, _ = decode_as(FetchRequest, header.api_version, frame, header.body_position)
        job = _Job(request, header.api_version, reply)
        refusal = _session_error(request)
        if refusal is not ErrorCode.NONE:
            return reply(build_fetch_response(job.version, [], error_code=refusal))
        found = self._pass(job)
        if found.cold:
            return self._in_task(job, found)
        if self._is_due(request, found):
            return self._answer(job, found)
        return self._park(job, found)

    def _pass(self, job: _Job) -> FetchPass:
        wanted = min(max(job.request.max_bytes, 1), self._settings.fetch_bytes_max)
        return self._reader.read(job.request, job.version, 1 if self._backlog.is_full else wanted)

    def _is_due(self, request: FetchRequest, found: FetchPass) -> bool:
        return (
            found.has_error
            or found.bytes_found >= request.min_bytes
            or request.max_wait_ms <= 0
            or not found.parts
            or found.bytes_left <= 0
            or self._parked >= self._settings.parked_fetches_max
        )

    def _answer(self, job: _Job, found: FetchPass) -> Response:
        topics = group_by_topic(found, job.version)
        endpoints = self._reader.endpoints(found)
        return job.reply(build_fetch_response(job.version, topics, node_endpoints=endpoints))

    # Parked

    def _park(self, job: _Job, found: FetchPass) -> asyncio.Future[Response]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()
        missing = job.request.min_bytes - found.bytes_found
        watched = [part.partition for part in found.parts if part.partition is not None]

        def advanced(partition: Partition, size_bytes: int) -> None:
            nonlocal missing
            missing -= size_bytes
            if missing <= 0 or not partition.is_serving:
                unpark()

        def unpark() -> None:
            leave()
            if not answer.done():
                self._finish_parked(job, answer)

        def leave() -> None:
            timer.cancel()
            while watched:
                watched.pop().unwatch(advanced)

        def ended(_: asyncio.Future[Response]) -> None:
            self._parked -= 1
            leave()

        wait_ms = min(job.request.max_wait_ms, self._settings.fetch_wait_ms_max)
        timer = loop.call_later(wait_ms / 1000, unpark)
        for partition in watched:
            partition.watch(advanced)
        self._parked += 1
        answer.add_done_callback(ended)
        return answer

    def _finish_parked(self, job: _Job, answer: asyncio.Future[Response]) -> None:
        found = self._pass(job)
        if not found.cold or found.bytes_found:
            answer.set_result(self._answer(job, found))
            return
        # What came has left memory again already: a slow turn, answered from objects.
        task = self._in_task(job, found)
        task.add_done_callback(lambda done: _copy_outcome(done, answer))
        answer.add_done_callback(lambda ended: task.cancel() if ended.cancelled() else None)

    # Cold

    def _in_task(self, job: _Job, found: FetchPass) -> asyncio.Task[Response]:
        return asyncio.get_running_loop().create_task(self._answer_cold(job, found), name="cold fetch")

    async def _answer_cold(self, job: _Job, found: FetchPass) -> Response:
        request = job.request
        chosen = _choose(found)
        # Hot data that was found is not kept back for long.
        ms_max = max(request.max_wait_ms, COLD_BESIDE_HOT_MS) if found.bytes_found else None
        outcomes = await asyncio.gather(
            *(
                self._cold_reads.read(partition, part.wanted.fetch_offset, room, ms_max=ms_max)
                for part, partition, room in chosen
            )
        )
        for (part, partition, _), outcome in zip(chosen, outcomes, strict=True):
            if isinstance(outcome, PartitionError):
                found.refuse(part, outcome)
                continue
            describe(part.answer, partition, is_committed=request.isolation_level == READ_COMMITTED)
            if found.may_add(outcome):
                found.add_records(part, outcome)
        return self._answer(job, found)


def _choose(found: FetchPass) -> list[tuple[FetchPart, Partition, int]]:
    """Which cold partitions are read, and with how much room each: in the request's order, as far as the answer has room."""
    chosen: list[tuple[FetchPart, Partition, int]] = []
    left = found.bytes_left
    for part in found.cold:
        if left <= 0 and (chosen or found.bytes_found):
            break
        room = max(min(part.wanted.partition_max_bytes, left), 1)
        assert part.partition is not None
        chosen.append((part, part.partition, room))
        left -= room
    return chosen


def _session_error(request: FetchRequest) -> ErrorCode:
    if request.session_id != NO_SESSION:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if request.session_epoch not in FULL_EPOCHS:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    return ErrorCode.NONE


def _copy_outcome(done: asyncio.Future[Response], answer: asyncio.Future[Response]) -> None:
    if answer.done():
        return
    if done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
