"""ShareFetch: acquires records for a member, and applies the acknowledgements that the request contains."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.share_fetch import (
    AcknowledgementBatch,
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ponor_runtime.turns import Steps, in_turns

from ponor_broker.handlers.share.acknowledging import Acknowledging, Outcome, check_size, member_of
from ponor_broker.handlers.share.share_reading import Delivered, Delivery, ShareReader, Wanted
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.topics.announcements import HINTED
from ponor_broker.partitions.topics.topics import MAIN_LISTENER
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.share_partitions.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ShareSession,
    ShareSessionError,
    ShareSessionKey,
    ShareSessions,
    check_partitions,
)
from ponor_broker.share_partitions.settings import GroupRules, ShareRules
from ponor_broker.share_partitions.share_partition import AcquireLimits

RECORD_LIMIT: Final = 1
"""Acquire mode of KIP-1206: `max_records` is exact."""
NO_LEADER: Final = -1
ROWS_PER_STEP: Final = 500
"""Partitions that are added to an answer in one turn of the event loop."""
ACKNOWLEDGEMENT_BYTES: Final = 64
"""Memory of a batch or a type of the acknowledgements, which a waiting request keeps."""

Acknowledged = Mapping[PartitionKey, Sequence[AcknowledgementBatch]]


class ShareFetchHandler:
    """ShareFetch."""

    def __init__(
        self,
        sessions: ShareSessions,
        acknowledging: Acknowledging,
        reader: ShareReader,
        rules: ShareRules,
        *,
        wait_ms_max: int,
    ) -> None:
        self._sessions = sessions
        self._acknowledging = acknowledging
        self._reader = reader
        self._rules = rules
        self._wait_ms_max = wait_ms_max

    async def handle(self, request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse:
        """Begin, continue or end the session; acknowledge; then acquire records, maybe after a wait."""
        try:
            check_partitions(sum(len(topic.partitions) for topic in request.topics))
            check_partitions(sum(len(topic.partitions) for topic in request.forgotten_topics_data))
            named = {
                (topic.topic_id, row.partition_index): row.acknowledgement_batches
                for topic in request.topics
                for row in topic.partitions
            }
            acknowledged = {key: batches for key, batches in named.items() if batches}
            member = member_of(request.group_id, request.member_id)
            size = check_size(acknowledged)
            _check_renewal(request)
            session = self._session(member, request, list(named), has_acknowledgements=bool(acknowledged))
        except ShareSessionError as error:
            return ShareFetchResponse(error_code=error.code, error_message=str(error))
        if request.share_session_epoch == INITIAL_EPOCH:
            context.connection.when_closed(session, partial(self._sessions.end, session))
            session.on_closed = partial(context.connection.forget, session)
            self._reader.session_begun(session)
        rules = self._rules.of(member.group_id)
        wanted = self._wanted(request)
        has_renewals = request.is_renew_ack
        is_final = request.share_session_epoch == FINAL_EPOCH
        del request, named
        context.free(size * ACKNOWLEDGEMENT_BYTES)
        outcomes, delivery = await self._answer_both(
            member, session, acknowledged, None if is_final or has_renewals else wanted, rules, has_renewals
        )
        if is_final:
            self._sessions.end(session)
        listener = context.connection.listener
        return await in_turns(self._response(outcomes, delivery, rules.delivery.lock_ms, listener))

    def _session(
        self,
        member: ShareSessionKey,
        request: ShareFetchRequest,
        named: Sequence[PartitionKey],
        *,
        has_acknowledgements: bool,
    ) -> ShareSession:
        epoch = request.share_session_epoch
        if epoch == FINAL_EPOCH:
            return self._sessions.get(member)
        if epoch == INITIAL_EPOCH:
            if has_acknowledgements:
                raise ShareSessionError(
                    ErrorCode.INVALID_REQUEST, "the first request of a share session has acknowledgements"
                )
            return self._sessions.begin(member, named)
        forgotten = [
            (topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions
        ]
        return self._sessions.resume(member, epoch, named, forgotten)

    def _wanted(self, request: ShareFetchRequest) -> Wanted | None:
        if request.max_records <= 0 or request.max_bytes <= 0:
            return None
        limits = AcquireLimits(
            request.max_records, max(request.batch_size, 1), request.share_acquire_mode == RECORD_LIMIT
        )
        wait_ms = min(max(request.max_wait_ms, 0), self._wait_ms_max)
        return Wanted(wait_ms, request.min_bytes, request.max_bytes, limits)

    async def _answer_both(
        self,
        member: ShareSessionKey,
        session: ShareSession,
        acknowledged: Acknowledged,
        wanted: Wanted | None,
        rules: GroupRules,
        has_renewals: bool,
    ) -> tuple[dict[PartitionKey, Outcome], Delivery | None]:
        """Acknowledge first, so that the reading part sees the effect; then wait for both."""
        begun = await self._acknowledging.begin(member, acknowledged, rules, has_renewals=has_renewals)
        if wanted is None:
            return await self._acknowledging.finish(begun), None
        if not acknowledged:
            return {}, await self._reader.read(session, wanted, rules)
        return await asyncio.gather(
            self._acknowledging.finish(begun), self._reader.read(session, wanted, rules)
        )

    # The answer

    def _response(
        self,
        outcomes: Mapping[PartitionKey, Outcome],
        delivery: Delivery | None,
        lock_ms: int,
        listener: str,
    ) -> Steps[ShareFetchResponse]:
        rows: dict[PartitionKey, PartitionData] = {}
        endpoints: dict[int, NodeEndpoint] = {}
        if delivery is not None:
            for number, one in enumerate(delivery.rows, 1):
                topic_id = one.part.topic
                assert isinstance(topic_id, bytes)
                rows[topic_id, one.part.index] = _delivered(one)
                if number % ROWS_PER_STEP == 0:
                    yield
            for node_id, host, port in self._reader.endpoints(delivery.found, listener):
                endpoints[node_id] = NodeEndpoint(node_id, host, port)
        for number, (key, (code, message, hint)) in enumerate(outcomes.items(), 1):
            row = rows.setdefault(key, PartitionData(key[1], records=b""))
            row.acknowledge_error_code, row.acknowledge_error_message = code, message
            if hint is not None:
                row.current_leader = LeaderIdAndEpoch(hint.leader_id, hint.leader_epoch)
                if hint.endpoint is not None and listener == MAIN_LISTENER:
                    endpoints[hint.leader_id] = NodeEndpoint(*hint.endpoint)
            if number % ROWS_PER_STEP == 0:
                yield
        topics: dict[bytes, list[PartitionData]] = {}
        for (topic_id, _), row in rows.items():
            topics.setdefault(topic_id, []).append(row)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=lock_ms,
            responses=[ShareFetchableTopicResponse(topic_id, one) for topic_id, one in topics.items()],
            node_endpoints=list(endpoints.values()),
        )


def _check_renewal(request: ShareFetchRequest) -> None:
    """A request that renews locks must ask for no records (KIP-1222)."""
    if request.is_renew_ack and (
        request.max_records or request.max_bytes or request.min_bytes or request.max_wait_ms
    ):
        raise ShareSessionError(
            ErrorCode.INVALID_REQUEST,
            "a request that renews locks must have MaxBytes, MinBytes, MaxRecords and MaxWaitMs 0",
        )


def _delivered(one: Delivered) -> PartitionData:
    part = one.part
    row = PartitionData(
        part.index,
        error_code=part.error_code,
        records=one.records,
        acquired_records=[AcquiredRecords(*acquired) for acquired in one.ranges],
    )
    if part.current_leader is not None:
        row.current_leader = LeaderIdAndEpoch(*part.current_leader)
    elif part.error_code in HINTED:
        row.current_leader = LeaderIdAndEpoch(NO_LEADER, NO_LEADER)
    return row
