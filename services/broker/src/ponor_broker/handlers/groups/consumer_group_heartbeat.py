"""ConsumerGroupHeartbeat: members of consumer groups join, continue and leave (KIP-848)."""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

from ponor_broker.coordination.record_format import fits_record
from ponor_broker.groups.consumer.assignment import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    partitions_of,
)
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.outcome import HeartbeatRefusedError
from ponor_broker.requests.api_handler import RequestContext

CLIENT_GENERATED_ID_FROM: Final = 1
"""In version 0 the coordinator generates the id of a member that joins without one."""
NO_TIMEOUT: Final = -1
_NO_SUBSCRIPTION: Final = (
    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
)


class ConsumerGroupHeartbeatHandler:
    """Checks the form of requests, with Kafka's messages."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._assignors = coordinator.settings.of_consumer_groups().assignors

    async def handle(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        """ConsumerGroupHeartbeat."""
        try:
            self._check(request, context.api_version)
        except HeartbeatRefusedError as refusal:
            return ConsumerGroupHeartbeatResponse(error_code=refusal.code, error_message=str(refusal))
        member_id = request.member_id or self._coordinator.new_member_id()
        answer = await self._coordinator.consumer_heartbeat(
            request.group_id, _heartbeat(request, member_id, context)
        )
        return self._response(request.group_id, answer)

    def _check(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        epoch = request.member_epoch
        if version >= CLIENT_GENERATED_ID_FROM or epoch > JOINING_EPOCH or epoch == LEAVING_EPOCH:
            check_text("MemberId", request.member_id)
        check_text("GroupId", request.group_id)
        check_text("InstanceId", request.instance_id)
        check_text("RackId", request.rack_id)
        if not fits_record(request.member_id):
            raise invalid_request("MemberId is too long.")
        if epoch == JOINING_EPOCH:
            _check_join(request)
        elif epoch == STATIC_LEAVING_EPOCH and request.instance_id is None:
            raise invalid_request("InstanceId can't be null.")
        elif epoch < STATIC_LEAVING_EPOCH:
            raise invalid_request("MemberEpoch is invalid.")
        if request.server_assignor is not None and request.server_assignor not in self._assignors:
            raise HeartbeatRefusedError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
                f"{', '.join(self._assignors)}.",
            )

    def _response(self, group_id: str, answer: HeartbeatAnswer) -> ConsumerGroupHeartbeatResponse:
        if answer.error is not ErrorCode.NONE:
            return ConsumerGroupHeartbeatResponse(error_code=answer.error, error_message=answer.message)
        is_leaving = answer.member_epoch < JOINING_EPOCH
        interval_ms = self._coordinator.heartbeat_interval_ms("consumer", group_id)
        return ConsumerGroupHeartbeatResponse(
            member_id=answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval_ms=0 if is_leaving else interval_ms,
            assignment=None
            if answer.assignment is None
            else Assignment(
                [
                    ConsumerGroupHeartbeatResponseTopicPartitions(topic_id, sorted(indexes))
                    for topic_id, indexes in answer.assignment.items()
                ]
            ),
        )


def invalid_request(message: str) -> HeartbeatRefusedError:
    """Return the refusal of a request whose form is invalid."""
    return HeartbeatRefusedError(ErrorCode.INVALID_REQUEST, message)


def check_text(name: str, text: str | None) -> None:
    """Refuse a text that is present and blank.

    Raises:
        HeartbeatRefusedError: INVALID_REQUEST.
    """
    if text is not None and not text.strip():
        raise invalid_request(f"{name} can't be empty.")


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == NO_TIMEOUT:
        raise invalid_request("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise invalid_request("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise invalid_request(_NO_SUBSCRIPTION)


def _heartbeat(
    request: ConsumerGroupHeartbeatRequest, member_id: str, context: RequestContext
) -> HeartbeatRequest:
    timeout_ms, topics = request.rebalance_timeout_ms, request.subscribed_topic_names
    return HeartbeatRequest(
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.host}",
        rebalance_timeout_ms=None if timeout_ms == NO_TIMEOUT else timeout_ms,
        topics=None if topics is None else frozenset(topics),
        expression=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None
        if request.topic_partitions is None
        else partitions_of((row.topic_id, row.partitions) for row in request.topic_partitions),
    )
