"""StreamsGroupDescribe: epochs, topology, members and tasks of streams groups."""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.streams_group_describe import (
    Assignment,
    DescribedGroup,
    KeyValue,
    Member,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    TaskIds,
    TopicInfo,
)
from ponor_kafka.messages.streams_group_describe import Endpoint as WireEndpoint
from ponor_kafka.messages.streams_group_describe import Subtopology as WireSubtopology
from ponor_kafka.messages.streams_group_describe import Topology as WireTopology
from ponor_runtime.turns import Steps, Turns

from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.streams.assignment import TaskId, Tasks
from ponor_broker.groups.streams.configured_topology import ConfiguredTopology
from ponor_broker.groups.streams.membership import StreamsMembership
from ponor_broker.groups.streams.record_codec import by_subtopology
from ponor_broker.groups.streams.topology import InternalTopic, Topology
from ponor_broker.handlers.groups.group_admin import GROUP_OPERATIONS, OPERATIONS_UNKNOWN
from ponor_broker.requests.api_handler import RequestContext

MEMBERS_PER_STEP: Final = 100


class StreamsGroupDescribeHandler:
    """Describes groups from memory, like DescribeGroups."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._turns = Turns()

    async def handle(
        self, request: StreamsGroupDescribeRequest, _: RequestContext
    ) -> StreamsGroupDescribeResponse:
        """StreamsGroupDescribe."""
        operations = GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_UNKNOWN
        await self._coordinator.shards.decided(request.group_ids)
        groups = [
            await self._turns.run_short(self._described(group_id, operations))
            for group_id in dict.fromkeys(request.group_ids)  # each once: it may have many members
        ]
        return StreamsGroupDescribeResponse(groups=groups)

    def _described(self, group_id: str, operations: int) -> Steps[DescribedGroup]:
        group = self._coordinator.streams_group(group_id)
        if isinstance(group, ErrorCode):
            is_missing = group is ErrorCode.GROUP_ID_NOT_FOUND
            return DescribedGroup(
                error_code=group,
                error_message=f"Group {group_id} not found." if is_missing else group.meaning,
                group_id=group_id,
            )
        contents = group.contents
        described = DescribedGroup(
            group_id=group_id,
            group_state=str(group.state),
            group_epoch=contents.group.epoch,
            assignment_epoch=contents.assigned_epoch,
            topology=None if contents.topology is None else _topology(contents.topology, group.configured()),
            authorized_operations=operations,
        )
        members: list[Member] = []
        for number, member_id in enumerate(list(contents.members), 1):
            if member_id in contents.members:  # otherwise it left between two steps
                members.append(_member(group, member_id))
            if number % MEMBERS_PER_STEP == 0:
                yield
        described.members = members
        return described


def _topology(topology: Topology, configured: ConfiguredTopology) -> WireTopology:
    """Describe the topology; without subtopologies if the topics do not fit, as in Kafka."""
    if not configured.tasks:
        return WireTopology(topology.epoch, None)
    return WireTopology(
        topology.epoch,
        [
            WireSubtopology(
                subtopology_id=each.subtopology_id,
                source_topics=each.source_topics,
                repartition_sink_topics=each.repartition_sinks,
                state_changelog_topics=[_topic(topic, configured) for topic in each.changelogs],
                repartition_source_topics=[_topic(topic, configured) for topic in each.repartition_sources],
            )
            for each in topology.subtopologies
        ],
    )


def _topic(topic: InternalTopic, configured: ConfiguredTopology) -> TopicInfo:
    configs = [KeyValue(name, text) for name, text in topic.configs]
    return TopicInfo(topic.name, configured.partitions[topic.name], topic.replication_factor, configs)


def _member(group: StreamsMembership, member_id: str) -> Member:
    member, current = group.contents.members[member_id], group.contents.current_of(member_id)
    endpoint = member.endpoint
    return Member(
        member_id=member_id,
        member_epoch=current.epoch,
        instance_id=None,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else WireEndpoint(endpoint.host, endpoint.port),
        client_tags=[KeyValue(name, text) for name, text in member.tags],
        assignment=_assignment(current.tasks),
        target_assignment=_assignment(group.contents.target_of(member_id)),
        is_classic=False,
    )


def _assignment(tasks: Tasks) -> Assignment:
    return Assignment(_rows(tasks.active), _rows(tasks.standby), [])


def _rows(tasks: frozenset[TaskId]) -> list[TaskIds]:
    return [TaskIds(each, indexes) for each, indexes in by_subtopology(tasks)]
