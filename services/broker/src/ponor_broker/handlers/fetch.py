"""Fetch: long poll over partitions, hot from memory, cold from the object store.

What lives here: when an answer is due. A pass over the partitions (`fetch_reading`) finds what memory has; enough of it, an error, or no time
left: answered at once. Otherwise the request is parked until appends bring enough or its time is over. Data that is in objects only is read on
a concurrency of its own, so that readers of old data never hold up those at the end.

There are no fetch sessions: every answer carries session id 0, which tells clients to send full requests (KIP-227).
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_response import build_fetch_response
from ponor_kafka.headers import RequestHeader
from ponor_kafka.messages.fetch import FetchRequest
from ponor_runtime.disk import Buffer
from s3stream.errors import S3StreamError

from ponor_broker.answer_backlog import AnswerBacklog
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
from ponor_broker.settings import BrokerSettings

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
        self._waiting = 0

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, *, ms_max: int | None
    ) -> list[Buffer] | PartitionError:
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
                return [record.payload for record in await partition.read(offset, bytes_max)]
        except TimeoutError as error:
            return storage_error(error) if ms_max is None else []
        except (PartitionError, S3StreamError) as error:
            return storage_error(error)
        finally:
            self._waiting -= 1


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

    def start(self, frame: bytearray, header: RequestHeader) -> list[Buffer] | asyncio.Future[list[Buffer]]:
        """Answer at once if an answer is due.

        Raises:
            KafkaWireError: malformed.
        """
        version = header.api_version
        decoded, _ = decode(ApiKey.FETCH, version, frame, header.body_position)
        request = cast("FetchRequest", decoded)
        refusal = _session_error(request)
        if refusal is not ErrorCode.NONE:
            return build_fetch_response(version, [], error_code=refusal)
        found = self._pass(request, version)
        if found.cold:
            return self._in_task(request, version, found)
        if self._is_due(request, found):
            return self._answer(found, version)
        return self._park(request, version, found)

    def _pass(self, request: FetchRequest, version: int) -> FetchPass:
        bytes_max = (
            1 if self._backlog.is_full else min(max(request.max_bytes, 1), self._settings.fetch_bytes_max)
        )
        return self._reader.read(request, version, bytes_max)

    def _is_due(self, request: FetchRequest, found: FetchPass) -> bool:
        return (
            found.has_error
            or found.bytes_found >= request.min_bytes
            or request.max_wait_ms <= 0
            or not found.parts
            or found.bytes_left <= 0
            or self._parked >= self._settings.parked_fetches_max
        )

    def _answer(self, found: FetchPass, version: int) -> list[Buffer]:
        return build_fetch_response(
            version, group_by_topic(found, version), node_endpoints=self._reader.endpoints(found)
        )

    # Parked

    def _park(self, request: FetchRequest, version: int, found: FetchPass) -> asyncio.Future[list[Buffer]]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Buffer]] = loop.create_future()
        missing = request.min_bytes - found.bytes_found
        watched = [part.partition for part in found.parts if part.partition is not None]

        def advanced(partition: Partition, size_bytes: int) -> None:
            nonlocal missing
            missing -= size_bytes
            if missing <= 0 or not partition.is_serving:
                finish()

        def finish() -> None:
            if not answer.done():
                self._finish_parked(request, version, answer)

        def unpark(_: asyncio.Future[list[Buffer]]) -> None:
            self._parked -= 1
            timer.cancel()
            for partition in watched:
                partition.unwatch(advanced)

        timer = loop.call_later(min(request.max_wait_ms, self._settings.fetch_wait_ms_max) / 1000, finish)
        for partition in watched:
            partition.watch(advanced)
        self._parked += 1
        answer.add_done_callback(unpark)
        return answer

    def _finish_parked(
        self, request: FetchRequest, version: int, answer: asyncio.Future[list[Buffer]]
    ) -> None:
        found = self._pass(request, version)
        if not found.cold or found.bytes_found:
            answer.set_result(self._answer(found, version))
            return
        # What came has left memory again already: a slow turn, answered from objects.
        task = self._in_task(request, version, found)
        task.add_done_callback(lambda done: _copy_outcome(done, answer))
        answer.add_done_callback(lambda ended: task.cancel() if ended.cancelled() else None)

    # Cold

    def _in_task(self, request: FetchRequest, version: int, found: FetchPass) -> asyncio.Task[list[Buffer]]:
        return asyncio.get_running_loop().create_task(
            self._answer_cold(request, version, found), name="cold fetch"
        )

    async def _answer_cold(self, request: FetchRequest, version: int, found: FetchPass) -> list[Buffer]:
        chosen: list[tuple[FetchPart, Partition, int]] = []
        left = found.bytes_left
        for part in found.cold:
            if left <= 0 and (chosen or found.bytes_found):
                break
            room = max(min(part.wanted.partition_max_bytes, left), 1)
            assert part.partition is not None
            chosen.append((part, part.partition, room))
            left -= room
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
            # A first batch larger than its room may have come with others; only the answer's first batch may exceed.
            if found.bytes_found == 0 or (outcome and len(outcome[0]) <= found.bytes_left):
                part.answer.records = outcome
                size = sum(map(len, outcome))
                found.bytes_found += size
                found.bytes_left -= size
        return self._answer(found, version)


def _session_error(request: FetchRequest) -> ErrorCode:
    if request.session_id != NO_SESSION:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    if request.session_epoch not in FULL_EPOCHS:
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH
    return ErrorCode.NONE


def _copy_outcome(done: asyncio.Future[list[Buffer]], answer: asyncio.Future[list[Buffer]]) -> None:
    if answer.done():
        return
    if done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
