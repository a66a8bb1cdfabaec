"""ShareAcknowledge: acknowledgements without a fetch; the last one ends the member's session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.share_acknowledge import (
    AcknowledgePartition,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from ponor_runtime.turns import Steps, in_turns

from ponor_broker.handlers.share.acknowledging import Acknowledging, Outcome, check_size, member_of
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.topics.announcements import HINTED
from ponor_broker.partitions.topics.topics import MAIN_LISTENER
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.share_partitions.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ShareSessionError,
    ShareSessionKey,
    ShareSessions,
    check_partitions,
)
from ponor_broker.share_partitions.settings import ShareRules

ROWS_PER_STEP: Final = 500
"""Partitions that are added to an answer in one turn of the event loop."""


class ShareAcknowledgeHandler:
    """ShareAcknowledge."""

    def __init__(self, sessions: ShareSessions, acknowledging: Acknowledging, rules: ShareRules) -> None:
        self._sessions = sessions
        self._acknowledging = acknowledging
        self._rules = rules

    async def handle(
        self, request: ShareAcknowledgeRequest, context: RequestContext
    ) -> ShareAcknowledgeResponse:
        """Apply acknowledgements, and end the session if the request says so."""
        try:
            check_partitions(sum(len(topic.partitions) for topic in request.topics))
            rows = {
                (topic.topic_id, row.partition_index): row
                for topic in request.topics
                for row in topic.partitions
            }
            member = member_of(request.group_id, request.member_id)
            check_size({key: row.acknowledgement_batches for key, row in rows.items()})
            self._check_session(member, request.share_session_epoch)
        except ShareSessionError as error:
            return ShareAcknowledgeResponse(error_code=error.code, error_message=str(error))
        rules = self._rules.of(member.group_id)
        outcomes = await self._acknowledge(member, rows, request)
        if request.share_session_epoch == FINAL_EPOCH:
            self._end(member)
        return await in_turns(_response(outcomes, rules.delivery.lock_ms, context.connection.listener))

    def _check_session(self, member: ShareSessionKey, epoch: int) -> None:
        if epoch == INITIAL_EPOCH:
            raise ShareSessionError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                "a share session begins with a ShareFetch; acknowledge with the epoch after it",
            )
        if epoch == FINAL_EPOCH:
            self._sessions.get(member)
        else:
            self._sessions.resume(member, epoch)

    async def _acknowledge(
        self,
        member: ShareSessionKey,
        rows: Mapping[PartitionKey, AcknowledgePartition],
        request: ShareAcknowledgeRequest,
    ) -> dict[PartitionKey, Outcome]:
        begun = await self._acknowledging.begin(
            member,
            {key: row.acknowledgement_batches for key, row in rows.items()},
            self._rules.of(member.group_id),
            has_renewals=request.is_renew_ack,
        )
        return await self._acknowledging.finish(begun)

    def _end(self, member: ShareSessionKey) -> None:
        try:
            self._sessions.end(self._sessions.get(member))
        except ShareSessionError:
            return  # the connection ended meanwhile, and the session with it


def _response(
    outcomes: Mapping[PartitionKey, Outcome], lock_ms: int, listener: str
) -> Steps[ShareAcknowledgeResponse]:
    topics: dict[bytes, list[PartitionData]] = {}
    endpoints: dict[int, NodeEndpoint] = {}
    for number, ((topic_id, index), (code, message, hint)) in enumerate(outcomes.items(), 1):
        row = PartitionData(index, error_code=code, error_message=message)
        if hint is not None:
            row.current_leader = LeaderIdAndEpoch(hint.leader_id, hint.leader_epoch)
            if hint.endpoint is not None and listener == MAIN_LISTENER:
                endpoints[hint.leader_id] = NodeEndpoint(*hint.endpoint)
        elif code in HINTED:
            row.current_leader = LeaderIdAndEpoch(-1, -1)
        topics.setdefault(topic_id, []).append(row)
        if number % ROWS_PER_STEP == 0:
            yield
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=lock_ms,
        responses=[ShareAcknowledgeTopicResponse(topic_id, rows) for topic_id, rows in topics.items()],
        node_endpoints=list(endpoints.values()),
    )
