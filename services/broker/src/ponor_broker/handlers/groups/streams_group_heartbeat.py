"""StreamsGroupHeartbeat: members of streams groups join, continue and leave (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.streams_group_heartbeat import (
    CopartitionGroup,
    EndpointToPartitions,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestTaskIds,
    StreamsGroupHeartbeatResponse,
    StreamsGroupHeartbeatResponseEndpoint,
    StreamsGroupHeartbeatResponseTaskIds,
    TopicInfo,
    TopicPartition,
)
from ponor_kafka.messages.streams_group_heartbeat import Status as WireStatus
from ponor_kafka.messages.streams_group_heartbeat import Subtopology as WireSubtopology
from ponor_kafka.messages.streams_group_heartbeat import Topology as WireTopology

from ponor_broker.coordination.record_format import fits_record
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.outcome import HeartbeatRefusedError
from ponor_broker.groups.streams.assignment import JOINING_EPOCH, TaskId, Tasks
from ponor_broker.groups.streams.configured_topology import TASKS_MAX
from ponor_broker.groups.streams.events import EndpointPartitions, StreamsAnswer, StreamsHeartbeat
from ponor_broker.groups.streams.member import Endpoint
from ponor_broker.groups.streams.record_codec import by_subtopology
from ponor_broker.groups.streams.topology import InternalTopic, Subtopology, Topology
from ponor_broker.requests.api_handler import RequestContext

NO_TIMEOUT: Final = -1
STATIC_LEAVING_EPOCH: Final = -2
REPORTED_TASKS_MAX: Final = 2 * TASKS_MAX
"""A task may become active while it is still reported as standby."""
_ALL_TASKS: Final = "If one task-type is non-null, all must be non-null."


class StreamsGroupHeartbeatHandler:
    """Checks the form of requests, with Kafka's messages."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def handle(
        self, request: StreamsGroupHeartbeatRequest, context: RequestContext
    ) -> StreamsGroupHeartbeatResponse:
        """StreamsGroupHeartbeat."""
        try:
            _check_support(request)
            _check(request)
            heartbeat = _heartbeat(request, context)
        except HeartbeatRefusedError as refusal:
            return StreamsGroupHeartbeatResponse(error_code=refusal.code, error_message=str(refusal))
        answer = await self._coordinator.streams_heartbeat(request.group_id, heartbeat)
        return self._response(request.group_id, answer)

    def _response(self, group_id: str, answer: StreamsAnswer) -> StreamsGroupHeartbeatResponse:
        if answer.error is not ErrorCode.NONE:
            return StreamsGroupHeartbeatResponse(error_code=answer.error, error_message=answer.message)
        is_leaving = answer.member_epoch < JOINING_EPOCH
        interval_ms = self._coordinator.heartbeat_interval_ms("streams", group_id)
        tasks, endpoints = answer.tasks, answer.endpoints
        return StreamsGroupHeartbeatResponse(
            member_id=answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval_ms=0 if is_leaving else interval_ms,
            status=[WireStatus(int(each.code), each.detail) for each in answer.statuses],
            active_tasks=None if tasks is None else _rows(tasks.active),
            standby_tasks=None if tasks is None else _rows(tasks.standby),
            warmup_tasks=None if tasks is None else [],
            endpoint_information_epoch=answer.endpoint_epoch,
            partitions_by_user_endpoint=None if endpoints is None else list(map(_endpoint, endpoints)),
        )


def _rows(tasks: frozenset[TaskId]) -> list[StreamsGroupHeartbeatResponseTaskIds]:
    return [StreamsGroupHeartbeatResponseTaskIds(each, indexes) for each, indexes in by_subtopology(tasks)]


def _endpoint(row: EndpointPartitions) -> EndpointToPartitions:
    return EndpointToPartitions(
        StreamsGroupHeartbeatResponseEndpoint(row.endpoint.host, row.endpoint.port),
        _partitions(row.active),
        _partitions(row.standby),
    )


def _partitions(partitions: Mapping[str, list[int]]) -> list[TopicPartition]:
    return [TopicPartition(name, indexes) for name, indexes in partitions.items()]


def _invalid(message: str) -> HeartbeatRefusedError:
    return HeartbeatRefusedError(ErrorCode.INVALID_REQUEST, message)


def _check_support(request: StreamsGroupHeartbeatRequest) -> None:
    """Refuse what Kafka 4.3.1 refuses."""
    if request.instance_id is not None:
        raise _invalid("Static membership is not yet supported.")
    if request.task_offsets is not None:
        raise _invalid("TaskOffsets are not supported yet.")
    if request.task_end_offsets is not None:
        raise _invalid("TaskEndOffsets are not supported yet.")
    if request.warmup_tasks:
        raise _invalid("WarmupTasks are not supported yet.")
    if request.topology is not None and any(
        each.source_topic_regex for each in request.topology.subtopologies
    ):
        raise _invalid("Regular expressions for source topics are not supported yet.")


def _check(request: StreamsGroupHeartbeatRequest) -> None:
    epoch = request.member_epoch
    for name, text in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            raise _invalid(f"{name} can't be empty.")
    if not fits_record(request.member_id):
        raise _invalid("MemberId is too long.")
    if epoch == JOINING_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVING_EPOCH:
        raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVING_EPOCH:
        raise _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    kinds = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if any(kind is None for kind in kinds) and any(kind is not None for kind in kinds):
        raise _invalid(_ALL_TASKS)
    if sum(len(row.partitions) for kind in kinds if kind is not None for row in kind) > REPORTED_TASKS_MAX:
        raise _invalid(f"A member reports at most {REPORTED_TASKS_MAX} tasks.")
    if epoch != JOINING_EPOCH and request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")


def _check_join(request: StreamsGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == NO_TIMEOUT:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            raise _invalid(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise _invalid("Topology must be non-null when (re-)joining.")


def _heartbeat(request: StreamsGroupHeartbeatRequest, context: RequestContext) -> StreamsHeartbeat:
    timeout_ms, endpoint, topology = request.rebalance_timeout_ms, request.user_endpoint, request.topology
    owned = None
    if request.active_tasks is not None and request.standby_tasks is not None:
        owned = Tasks(_tasks(request.active_tasks), _tasks(request.standby_tasks))
    return StreamsHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        endpoint_epoch=request.endpoint_information_epoch,
        rack_id=request.rack_id,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.host}",
        rebalance_timeout_ms=None if timeout_ms == NO_TIMEOUT else timeout_ms,
        topology=None if topology is None else _topology(topology),
        owned=owned,
        process_id=request.process_id,
        endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        tags=None if request.client_tags is None else _pairs(request.client_tags),
        is_shutdown=request.shutdown_application,
    )


def _tasks(rows: Iterable[StreamsGroupHeartbeatRequestTaskIds]) -> frozenset[TaskId]:
    return frozenset(TaskId(row.subtopology_id, index) for row in rows for index in row.partitions)


def _pairs(rows: Iterable[KeyValue]) -> tuple[tuple[str, str], ...]:
    return tuple((row.key, row.value) for row in rows)


def _topology(topology: WireTopology) -> Topology:
    parts = sorted(map(_subtopology, topology.subtopologies), key=lambda each: each.subtopology_id)
    ids = [each.subtopology_id for each in parts]
    if len(set(ids)) != len(ids):
        raise HeartbeatRefusedError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY, "Two subtopologies have the same id; each needs its own."
        )
    return Topology(topology.epoch, tuple(parts))


def _subtopology(each: WireSubtopology) -> Subtopology:
    return Subtopology(
        subtopology_id=each.subtopology_id,
        source_topics=tuple(sorted(each.source_topics)),
        repartition_sources=_topics(each.repartition_source_topics),
        repartition_sinks=tuple(sorted(each.repartition_sink_topics)),
        changelogs=_topics(each.state_changelog_topics),
        copartition_groups=tuple(_copartition_group(each, group) for group in each.copartition_groups),
    )


def _topics(topics: Iterable[TopicInfo]) -> tuple[InternalTopic, ...]:
    found = (
        InternalTopic(topic.name, topic.partitions, topic.replication_factor, _pairs(topic.topic_configs))
        for topic in topics
    )
    return tuple(sorted(found, key=lambda topic: topic.name))


def _copartition_group(each: WireSubtopology, group: CopartitionGroup) -> frozenset[str]:
    """Return the names of the topics, to which the request refers by index."""
    repartition = [topic.name for topic in each.repartition_source_topics]
    return frozenset(
        _at(each.source_topics, group.source_topics) + _at(repartition, group.repartition_source_topics)
    )


def _at(names: Sequence[str], indexes: Sequence[int]) -> list[str]:
    if any(not 0 <= index < len(names) for index in indexes):
        raise HeartbeatRefusedError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            "A copartition group refers to a topic that its subtopology does not contain.",
        )
    return [names[index] for index in indexes]
