"""Groups of every type with Kafka's own requests: list, describe, delete."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from ponor_kafka.codec import decode_versioned
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.message import Message
from ponor_kafka.messages import (
    consumer_group_describe,
    describe_groups,
    share_group_describe,
    streams_group_describe,
)
from ponor_kafka.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ponor_kafka.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ponor_kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse

from ponor_cli.clients.coordinators import GROUP_KEY, Brokers, coordinator_of, repeated
from ponor_cli.clients.kafka_client import error_name
from ponor_cli.errors import CommandError

M = TypeVar("M", bound=Message)
Place: TypeAlias = tuple[str, int]
EMPTY: Final = "Empty"
CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class GroupType(enum.StrEnum):
    """Kafka's types of groups."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"
    STREAMS = "Streams"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group in a list. `protocol` is what the members of a classic group agreed on, such as `consumer`."""

    group_id: str
    type: str
    state: str
    protocol: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member. `tasks` are those of a streams group: SUBTOPOLOGY_PARTITION, and a word for inactive ones."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int | None
    partitions: tuple[Place, ...] = ()
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group with its members. `epoch` is None for a classic group."""

    listed: ListedGroup
    state: str
    epoch: int | None
    assignor: str
    members: tuple[GroupMember, ...]


class AbsentGroupError(CommandError):
    """There is no such group."""

    def __init__(self, group_id: str) -> None:
        super().__init__(f"there is no group {group_id}; `ponor group list` lists the groups")


def list_groups(
    brokers: Brokers, types: Sequence[GroupType] = (), states: Sequence[str] = ()
) -> list[ListedGroup]:
    """Return the groups of all coordinators, by name; an empty filter matches all.

    Raises:
        CommandError: a coordinator refuses.
    """
    found = [row for node_id in brokers.node_ids for row in _listed_at(brokers, node_id, types, states)]
    return sorted(found, key=lambda row: row.group_id)


def find_group(brokers: Brokers, group_id: str) -> ListedGroup:
    """Return a group as its coordinator lists it.

    Raises:
        AbsentGroupError: the group does not exist.
        CommandError: no coordinator answers.
    """
    # FindCoordinator would create the topic, but a command that only reads must not create topics.
    if brokers.any.metadata([OFFSETS_TOPIC]).topics[0].error_code != ErrorCode.NONE:
        raise AbsentGroupError(group_id)
    coordinator_id = coordinator_of(brokers, GROUP_KEY, group_id)
    for row in _listed_at(brokers, coordinator_id):
        if row.group_id == group_id:
            return row
    raise AbsentGroupError(group_id)


def require_empty(group: ListedGroup) -> None:
    """Refuse a group with members.

    Raises:
        CommandError: the group is not empty.
    """
    if group.state != EMPTY:
        raise _not_empty(group.group_id, f" (state {group.state})")


def describe_group(brokers: Brokers, group_id: str) -> DescribedGroup:
    """Return a group with its members.

    Raises:
        AbsentGroupError: the group does not exist.
        CommandError: the coordinator refuses.
    """
    group = find_group(brokers, group_id)
    return _DESCRIBERS[GroupType(group.type)](brokers, group)


def delete_group(brokers: Brokers, group_id: str) -> ListedGroup:
    """Delete a group without members, with its offsets. Return what it was.

    Raises:
        AbsentGroupError: the group does not exist.
        CommandError: the group has members, or the coordinator refuses.
    """
    group = find_group(brokers, group_id)
    require_empty(group)
    response = at_coordinator(
        brokers,
        group_id,
        DeleteGroupsRequest([group_id]),
        DeleteGroupsResponse,
        lambda answer: answer.results[0].error_code,
    )
    result = response.results[0]
    if result.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise AbsentGroupError(group_id)
    raise_for(group_id, result.error_code, result.error_message)
    return group


def at_coordinator(
    brokers: Brokers,
    group_id: str,
    request: Message,
    response_class: type[M],
    code_of: Callable[[M], int],
    *,
    version_max: int | None = None,
) -> M:
    """Send a request to the coordinator of a group; look the coordinator up again while it moves."""

    def call() -> M:
        coordinator = brokers.of(coordinator_of(brokers, GROUP_KEY, group_id))
        return coordinator.call(request, response_class, version_max=version_max)

    return repeated(call, code_of)


def raise_for(group_id: str, code: int, message: str | None = None) -> None:
    """Raise the error of an answer about a group.

    Raises:
        CommandError: the code is an error.
    """
    if code == ErrorCode.NON_EMPTY_GROUP:
        raise _not_empty(group_id)
    if code != ErrorCode.NONE:
        raise CommandError(f"group {group_id}: {error_name(code)}{f' ({message})' if message else ''}")


def _not_empty(group_id: str, state: str = "") -> CommandError:
    return CommandError(
        f"group {group_id} has members{state}; stop them first, `ponor group describe {group_id}` shows them"
    )


def _listed_at(
    brokers: Brokers, node_id: int, types: Sequence[GroupType] = (), states: Sequence[str] = ()
) -> list[ListedGroup]:
    request = ListGroupsRequest(list(states), list(types))
    call = partial(brokers.of(node_id).call, request, ListGroupsResponse)
    response = repeated(call, lambda answer: answer.error_code)
    if response.error_code != ErrorCode.NONE:
        raise CommandError(
            f"broker {node_id} cannot list groups: {error_name(response.error_code)}; repeat the command"
        )
    return [
        ListedGroup(row.group_id, row.group_type.capitalize(), row.group_state, row.protocol_type, node_id)
        for row in response.groups
    ]


def _described(brokers: Brokers, group_id: str, request: Message, response_class: type[M]) -> Any:
    """Return the only group of the answer to one of the four describe requests."""

    def row(answer: Any) -> Any:
        return answer.groups[0]

    found = row(at_coordinator(brokers, group_id, request, response_class, lambda each: row(each).error_code))
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise AbsentGroupError(group_id)
    raise_for(group_id, found.error_code, found.error_message)
    return found


def _classic(brokers: Brokers, group: ListedGroup) -> DescribedGroup:
    request = describe_groups.DescribeGroupsRequest([group.group_id])
    row = _described(brokers, group.group_id, request, describe_groups.DescribeGroupsResponse)
    members = tuple(
        GroupMember(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            None,
            _classic_partitions(row.protocol_type, each.member_assignment),
        )
        for each in row.members
    )
    return DescribedGroup(group, row.group_state, None, row.protocol_data, members)


def _classic_partitions(protocol_type: str, assignment: bytes) -> tuple[Place, ...]:
    """Return the partitions of an assignment, which only members of consumers' groups define."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE or not assignment:
        return ()
    try:
        decoded, _ = decode_versioned(ConsumerProtocolAssignment, assignment)
    except KafkaWireError:  # a client may store any bytes
        return ()
    return _places((row.topic, row.partitions) for row in decoded.assigned_partitions)


def _consumer(brokers: Brokers, group: ListedGroup) -> DescribedGroup:
    request = consumer_group_describe.ConsumerGroupDescribeRequest([group.group_id])
    response_class = consumer_group_describe.ConsumerGroupDescribeResponse
    return _with_partitions(group, _described(brokers, group.group_id, request, response_class))


def _share(brokers: Brokers, group: ListedGroup) -> DescribedGroup:
    request = share_group_describe.ShareGroupDescribeRequest([group.group_id])
    response_class = share_group_describe.ShareGroupDescribeResponse
    return _with_partitions(group, _described(brokers, group.group_id, request, response_class))


def _with_partitions(group: ListedGroup, row: Any) -> DescribedGroup:
    members = tuple(
        GroupMember(
            each.member_id,
            getattr(each, "instance_id", None),  # share groups have no static members
            each.client_id,
            each.client_host,
            each.member_epoch,
            _places((part.topic_name, part.partitions) for part in each.assignment.topic_partitions),
        )
        for each in row.members
    )
    return DescribedGroup(group, row.group_state, row.group_epoch, row.assignor_name, members)


def _streams(brokers: Brokers, group: ListedGroup) -> DescribedGroup:
    request = streams_group_describe.StreamsGroupDescribeRequest([group.group_id])
    response_class = streams_group_describe.StreamsGroupDescribeResponse
    row = _described(brokers, group.group_id, request, response_class)
    subtopologies = () if row.topology is None else row.topology.subtopologies or ()
    topics = {
        each.subtopology_id: [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
        for each in subtopologies
    }
    members = tuple(
        GroupMember(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            each.member_epoch,
            _places(
                (topic, tasks.partitions)
                for tasks in each.assignment.active_tasks
                for topic in topics.get(tasks.subtopology_id, [])
            ),
            _tasks(each.assignment),
        )
        for each in row.members
    )
    return DescribedGroup(group, row.group_state, row.group_epoch, "sticky", members)


def _tasks(assignment: streams_group_describe.Assignment) -> tuple[str, ...]:
    kinds = (
        ("", assignment.active_tasks),
        (" standby", assignment.standby_tasks),
        (" warm-up", assignment.warmup_tasks),
    )
    return tuple(
        f"{row.subtopology_id}_{partition}{kind}"
        for kind, rows in kinds
        for row in rows
        for partition in sorted(row.partitions)
    )


def _places(rows: Iterable[tuple[str, Sequence[int]]]) -> tuple[Place, ...]:
    return tuple(sorted((topic, partition) for topic, partitions in rows for partition in partitions))


_DESCRIBERS: Final = {
    GroupType.CLASSIC: _classic,
    GroupType.CONSUMER: _consumer,
    GroupType.SHARE: _share,
    GroupType.STREAMS: _streams,
}
