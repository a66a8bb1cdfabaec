"""Fetch: long poll over partitions, from memory or objects, as a full request or within a fetch session.

A pass over the partitions (`fetch_reading`) collects data from memory. The request is answered
immediately if the data is enough, if there is an error, or if it must not wait. Otherwise it is parked
(`fetch_parking`) until appends bring enough bytes or its time has passed. Reads from objects have
their own bounds (`cold_reads`), so that readers of old data do not delay readers at the end of the
log.

In a fetch session (`fetch_session`), the session selects the partitions to check, and the answer
contains only changes.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from functools import partial
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_response import build_fetch_response
from ponor_kafka.fetch_walk import FINAL_EPOCH, SESSION_MIN, TOPIC_ID_MIN, FetchWalk, walk_fetch
from ponor_kafka.headers import RequestHeader
from ponor_runtime.disk import Buffer

from ponor_broker.handlers.fetch.cold_reads import ColdReads
from ponor_broker.handlers.fetch.fetch_parking import (
    FetchParking,
    Listen,
    TransitWait,
    copy_outcome,
    listen_to,
)
from ponor_broker.handlers.fetch.fetch_reading import FetchPass, FetchReader
from ponor_broker.handlers.fetch.fetch_session import INITIAL_EPOCH, NO_SESSION, FetchSession
from ponor_broker.handlers.fetch.fetch_session_cache import FetchSessionCache
from ponor_broker.handlers.fetch.partition_fetch import READ_COMMITTED, READ_UNCOMMITTED, PartitionFetch
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.requests.api_handler import WhenFenced
from ponor_broker.requests.connection import Response
from ponor_broker.requests.dispatch import Reply
from ponor_broker.requests.request_flow import LARGE_CONTROL_BYTES, AnswerBacklog
from ponor_broker.serving import Serving
from ponor_broker.settings import BrokerSettings

COLD_BESIDE_HOT_MS: Final = 100
COLD_PARTITIONS_MAX: Final = 256
"""Cold partitions that one fetch reads; the next fetch reads others. Without this bound, a client that
fetches few bytes of each of thousands of partitions would take all places of `cold_reads_waiting_max`.
"""
ISOLATION_LEVELS: Final = (READ_UNCOMMITTED, READ_COMMITTED)
LARGE_WAIT_MS_MAX: Final = 500
"""Longest wait for data of a request above `LARGE_CONTROL_BYTES`; the default of Kafka's consumer. Such
requests of all clients share a budget, which 32 of them with 4 MiB each use up.
"""
NEVER_ENOUGH_BYTES: Final = 1 << 62
FULL_EPOCHS: Final = (FINAL_EPOCH, INITIAL_EPOCH)
"""Session epochs of a full request."""


class _Job:
    """One request until its answer; `plain` contains its partitions if it has no session."""

    __slots__ = ("context", "epoch", "is_full", "plain", "reply", "session", "version", "wait_ms_max", "walk")

    def __init__(
        self, walk: FetchWalk, version: int, reply: Reply, session: FetchSession | None, wait_ms_max: int
    ) -> None:
        self.walk = walk
        self.wait_ms_max = wait_ms_max
        self.version = version
        self.reply = reply
        self.session = session
        self.is_full = walk.session_epoch in FULL_EPOCHS
        self.epoch = 0 if session is None else session.epoch
        self.plain = _partitions(walk) if session is None else []
        self.context: contextvars.Context | None = None
        """The context of the request while it is parked: its wake-up may run in the context of another
        request's trace."""

    @property
    def partitions(self) -> int:
        """Number of requested partitions."""
        return len(self.plain) if self.session is None else len(self.session)

    @property
    def is_incremental(self) -> bool:
        """Whether the answer may omit partitions."""
        return self.session is not None and not self.is_full

    @property
    def is_overtaken(self) -> bool:
        """Whether a later request continued the session while this one waited: its partitions now
        belong to that request.
        """
        return self.session is not None and self.session.epoch != self.epoch


class FetchHandler:
    """Fulfils `dispatch.RawHandler`."""

    version_min = 4
    version_max = 18
    when_fenced = WhenFenced.REFUSES

    def __init__(
        self,
        partitions: PartitionManager,
        backlog: AnswerBacklog,
        cold_reads: ColdReads,
        sessions: FetchSessionCache,
        parking: FetchParking,
        serving: Serving,
        settings: BrokerSettings,
    ) -> None:
        self._reader = FetchReader(partitions)
        self._transit = partitions.parking
        self._backlog = backlog
        self._cold_reads = cold_reads
        self._sessions = sessions
        self._parking = parking
        self._serving = serving
        self._settings = settings

    def start(
        self, frame: bytearray, header: RequestHeader, reply: Reply
    ) -> Response | asyncio.Future[Response]:
        """Parse the request and run its first pass.

        Raises:
            KafkaWireError: malformed, or more partitions than `fetch_partitions_max`.
        """
        version = header.api_version
        limit = self._settings.fetch_partitions_max
        walk, _ = walk_fetch(version, frame, header.body_position, partitions_max=limit)
        if walk.isolation_level not in ISOLATION_LEVELS:
            return reply(_refused(walk, version))
        session: FetchSession | None = None
        if walk.session_epoch not in FULL_EPOCHS:
            outcome = self._resume(walk, version)
            if isinstance(outcome, ErrorCode):
                return reply(build_fetch_response(version, (), error_code=outcome))
            session = outcome
        elif walk.session_id != NO_SESSION or walk.session_epoch == INITIAL_EPOCH:
            session = self._begin(walk, version)
        wait_ms_max = self._settings.fetch_wait_ms_max
        if len(frame) > LARGE_CONTROL_BYTES:
            wait_ms_max = min(wait_ms_max, LARGE_WAIT_MS_MAX)
        job = _Job(walk, version, reply, session, wait_ms_max)
        return self._continue(job, self._pass(job))

    def _continue(self, job: _Job, found: FetchPass) -> Response | asyncio.Future[Response]:
        """Answer the result of a pass, or park the request."""
        if found.held and not (job.is_incremental and (found.cold or self._is_due(job, found))):
            wait = TransitWait()
            transits = [transit for _, transit in found.held]
            if not self._parking.is_full and wait.take_places(self._transit, transits):
                return self._park(job, found, wait)
            self._reader.refuse_held(found, version=job.version)
        if found.cold:
            return self._in_task(job, found)
        if self._is_due(job, found):
            return self._answer(job, found)
        return self._park(job, found)

    # Sessions

    def _resume(self, walk: FetchWalk, version: int) -> FetchSession | ErrorCode | None:
        """Apply the changes of an incremental request to its session and return the session; end it and
        return None if it has no partitions left.
        """
        session = self._sessions.find(walk.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.serving_epoch != self._serving.epoch:
            # The session's partitions may have other leaders now. A full request looks up all of them again.
            self._sessions.remove(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != walk.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != (version >= TOPIC_ID_MIN):
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.update(walk)
        if len(session) == 0:
            self._sessions.remove(session)
            return None
        if not self._sessions.used(session):
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return session

    def _begin(self, walk: FetchWalk, version: int) -> FetchSession | None:
        """End the session that a full request names; return a new session if the request starts one."""
        if (named := self._sessions.find(walk.session_id)) is not None:
            self._sessions.remove(named)
        if walk.session_epoch == FINAL_EPOCH or version < SESSION_MIN:
            return None
        session = FetchSession(
            walk, uses_topic_ids=version >= TOPIC_ID_MIN, serving_epoch=self._serving.epoch
        )
        return session if self._sessions.may_remember(session) else None

    # Passes and answers

    def _pass(self, job: _Job) -> FetchPass:
        found = self._read(job)
        if job.session is not None and not job.is_full:
            job.session.examined(found.parts)
        return found

    def _read(self, job: _Job) -> FetchPass:
        walk, session = job.walk, job.session
        wanted: Sequence[PartitionFetch] = job.plain if session is None else session.due
        return self._reader.read(
            wanted,
            min(walk.bytes_max, 1 if self._backlog.is_full else self._settings.fetch_bytes_max),
            version=job.version,
            isolation_level=walk.isolation_level,
            whole=job.is_full,
        )

    def _is_due(self, job: _Job, found: FetchPass) -> bool:
        walk = job.walk
        return (
            found.bytes_found >= walk.min_bytes
            or found.is_urgent
            or walk.max_wait_ms <= 0
            # no requested partition exists, or none was requested, so no append can add data
            or found.unknown == job.partitions
            or found.bytes_left <= 0
            or self._parking.is_full
        )

    def _answer(self, job: _Job, found: FetchPass) -> Response:
        session = job.session
        if session is None:
            return job.reply(self._body(job, found, found.parts, NO_SESSION))
        if job.is_overtaken:
            code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return job.reply(build_fetch_response(job.version, (), error_code=code))
        parts = found.parts
        if not job.is_full:
            parts = [one for one in parts if one.is_news]
        elif not self._sessions.admit(session):
            session.close()
        body = self._body(job, found, parts, session.session_id)
        session.answered(parts)
        return job.reply(body)

    def _body(
        self, job: _Job, found: FetchPass, parts: Sequence[PartitionFetch], session_id: int
    ) -> Sequence[Buffer]:
        for one in parts:
            if one.records_bytes and one.partition is not None:
                one.partition.bytes_out += one.records_bytes
        return build_fetch_response(
            job.version,
            parts,
            session_id=session_id,
            node_endpoints=self._reader.endpoints(found, job.reply.connection.listener),
        )

    # Parked

    def _park(self, job: _Job, found: FetchPass, wait: TransitWait | None = None) -> asyncio.Future[Response]:
        """Wait for data. With `wait`, wait for partitions in transit: a full answer must contain
        them, however much data the others have.
        """
        if job.context is None:
            job.context = contextvars.copy_context()
        listen: Listen = partial(listen_to, found.parts)
        if job.session is not None and not job.is_full:
            listen = job.session.wait  # only an admitted session watches its partitions itself
        for one in found.parts:
            # a parked fetch reads again when it wakes up, and must not keep batches in memory until then
            one.drop_records()
        missing_bytes = job.walk.min_bytes - found.bytes_found
        wait_ms = min(job.walk.max_wait_ms, job.wait_ms_max)
        if wait is not None:
            listen = wait.beside(listen)
            if not job.is_incremental:
                missing_bytes, wait_ms = NEVER_ENOUGH_BYTES, max(wait_ms, self._settings.park_ms_max)
        return self._parking.park(
            missing_bytes=missing_bytes,
            wait_ms=wait_ms,
            listen=listen,
            finish=partial(self._finish_parked, job, wait),
            recount=partial(self._missing_bytes, job) if job.walk.isolation_level == READ_COMMITTED else None,
        )

    def _missing_bytes(self, job: _Job) -> int:
        """Return how many bytes a parked fetch still waits for; 0: answer it now."""
        if job.walk.min_bytes <= 1:
            return 0
        found = self._read(job)
        for one in found.parts:
            one.drop_records()
        if found.cold or found.held or self._is_due(job, found):
            return 0
        return job.walk.min_bytes - found.bytes_found

    def _finish_parked(self, job: _Job, wait: TransitWait | None, answer: asyncio.Future[Response]) -> None:
        found = self._pass(job)
        if found.held and wait is None and not job.is_incremental:
            # The wait ended while a partition is in transit: park again for that partition.
            outcome = self._continue(job, found)
            if isinstance(outcome, asyncio.Future):
                copy_outcome(outcome, answer)
            else:
                answer.set_result(outcome)
            return
        if found.held and (not job.is_incremental or (wait is not None and wait.is_over)):
            self._reader.refuse_held(found, version=job.version)
        if not found.cold or found.bytes_found:
            answer.set_result(self._answer(job, found))
            return
        # The new data is no longer in memory: read it from objects.
        copy_outcome(self._in_task(job, found), answer)

    # Cold

    def _in_task(self, job: _Job, found: FetchPass) -> asyncio.Task[Response]:
        loop = asyncio.get_running_loop()
        return loop.create_task(self._answer_cold(job, found), name="cold fetch", context=job.context)

    async def _answer_cold(self, job: _Job, found: FetchPass) -> Response:
        walk = job.walk
        chosen = _choose(found)
        # Data from memory is not delayed for long by reads from objects.
        ms_max = max(walk.max_wait_ms, COLD_BESIDE_HOT_MS) if found.bytes_found else None
        outcomes = await asyncio.gather(
            *(
                self._cold_reads.read(
                    job, partition, one.fetch_offset, room, ms_max=ms_max, committed=one.is_committed
                )
                for one, partition, room in chosen
            )
        )
        if job.is_overtaken:
            return self._answer(job, found)
        for (one, partition, _), outcome in zip(chosen, outcomes, strict=True):
            if isinstance(outcome, PartitionError):
                found.refuse(one, outcome)
                continue
            # the read took time: another broker may have appended by now
            if not partition.is_serving:
                absent = PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.identity} moved")
                self._reader.refuse(found, one, absent, version=job.version)
                continue
            one.begin(partition, walk.isolation_level)
            found.add_records(one, *outcome)
        return self._answer(job, found)


def _partitions(walk: FetchWalk) -> list[PartitionFetch]:
    """Return the requested partitions. If a partition is named twice, the last entry counts, as in Kafka."""
    wanted = {(topic, row[0]): row for topic, rows in walk.topics for row in rows}
    return [PartitionFetch(topic, row) for (topic, _), row in wanted.items()]


def _refused(walk: FetchWalk, version: int) -> Sequence[Buffer]:
    """Return the answer to an unknown isolation level. Clients treat its code as final."""
    parts = _partitions(walk)
    for one in parts:
        one.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
        one.aborted_transactions = ()
    return build_fetch_response(version, parts, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)


def _choose(found: FetchPass) -> list[tuple[PartitionFetch, Partition, int]]:
    """Select the cold partitions to read and their share of the answer's room, in request order."""
    chosen: list[tuple[PartitionFetch, Partition, int]] = []
    left = found.bytes_left
    for one in found.cold[:COLD_PARTITIONS_MAX]:
        if left <= 0 and (chosen or found.bytes_found):
            break
        room = max(min(one.bytes_max, left), 1)
        assert one.partition is not None
        chosen.append((one, one.partition, room))
        left -= room
    return chosen
