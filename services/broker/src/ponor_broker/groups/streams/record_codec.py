"""Encoding of a streams group's records: Kafka's own format (docs/formats/consumer-offsets.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from ponor_kafka.codec import decode_as, encode_versioned
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.message import Message
from ponor_kafka.messages import group_coordinator_records as wire
from ponor_kafka.primitives import Buffer

from ponor_broker.coordination.record_format import version_of
from ponor_broker.groups.consumer.records import TargetEpoch
from ponor_broker.groups.streams.assignment import CurrentAssignment, MemberState, TaskId, Tasks
from ponor_broker.groups.streams.member import Endpoint, StreamsMember
from ponor_broker.groups.streams.records import (
    GroupEpoch,
    RecordKind,
    StreamsEntry,
    StreamsKey,
    StreamsValue,
)
from ponor_broker.groups.streams.topology import InternalTopic, Subtopology, Topology

STREAMS_KEYS: Final = frozenset(RecordKind)
_VALUE_VERSION: Final = 0


def encode_streams_entry(entry: StreamsEntry) -> tuple[bytes, bytes | None]:
    """Return key and value of an entry; the value of a tombstone is None."""
    value = None if entry.value is None else encode_versioned(_value_of(entry.value), _VALUE_VERSION)
    return encode_versioned(_key_of(entry.key), entry.key.kind), value


def _key_of(key: StreamsKey) -> Message:
    match key.kind:
        case RecordKind.EPOCH:
            return wire.StreamsGroupMetadataKey(key.group_id)
        case RecordKind.MEMBER:
            return wire.StreamsGroupMemberMetadataKey(key.group_id, key.member_id)
        case RecordKind.TARGET_EPOCH:
            return wire.StreamsGroupTargetAssignmentMetadataKey(key.group_id)
        case RecordKind.TARGET:
            return wire.StreamsGroupTargetAssignmentMemberKey(key.group_id, key.member_id)
        case RecordKind.CURRENT:
            return wire.StreamsGroupCurrentMemberAssignmentKey(key.group_id, key.member_id)
        case RecordKind.TOPOLOGY:
            return wire.StreamsGroupTopologyKey(key.group_id)


def _value_of(value: StreamsValue) -> Message:
    match value:
        case GroupEpoch(epoch, topics_hash, validated_epoch, configs):
            used = [wire.LastAssignmentConfig(name, text) for name, text in configs]
            return wire.StreamsGroupMetadataValue(epoch, topics_hash, validated_epoch, used)
        case StreamsMember() as member:
            return _encode_member(member)
        case TargetEpoch(epoch, computed_ms):
            return wire.StreamsGroupTargetAssignmentMetadataValue(epoch, computed_ms)
        case Tasks(active, standby):
            return wire.StreamsGroupTargetAssignmentMemberValue(
                [wire.TargetTaskIds(each, indexes) for each, indexes in by_subtopology(active)],
                [wire.TargetTaskIds(each, indexes) for each, indexes in by_subtopology(standby)],
            )
        case CurrentAssignment() as current:
            return wire.StreamsGroupCurrentMemberAssignmentValue(
                member_epoch=current.epoch,
                previous_member_epoch=current.previous_epoch,
                state=int(current.state),
                active_tasks=_encode_epoched(current.active),
                standby_tasks=_encode_plain(current.standby),
                active_tasks_pending_revocation=_encode_epoched(current.revoking_active),
                standby_tasks_pending_revocation=_encode_plain(current.revoking_standby),
            )
        case Topology(epoch, subtopologies):
            return wire.StreamsGroupTopologyValue(epoch, list(map(_encode_subtopology, subtopologies)))


def by_subtopology(tasks: Collection[TaskId]) -> list[tuple[str, list[int]]]:
    """Return the partitions of tasks by subtopology, sorted."""
    # Sorted afterwards: a comparison of numbers is faster than one of tasks.
    found: dict[str, list[int]] = {}
    for subtopology_id, partition in tasks:
        found.setdefault(subtopology_id, []).append(partition)
    return [(subtopology_id, sorted(found[subtopology_id])) for subtopology_id in sorted(found)]


def _encode_member(member: StreamsMember) -> Message:
    endpoint = member.endpoint
    return wire.StreamsGroupMemberMetadataValue(
        instance_id=None,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else wire.StreamsEndpoint(endpoint.host, endpoint.port),
        client_tags=[wire.StreamsClientTag(name, text) for name, text in member.tags],
    )


def _encode_epoched(tasks: Mapping[TaskId, int]) -> list[wire.CurrentTaskIds]:
    found: dict[str, list[tuple[int, int]]] = {}
    for (subtopology_id, partition), epoch in tasks.items():
        found.setdefault(subtopology_id, []).append((partition, epoch))
    rows: list[wire.CurrentTaskIds] = []
    for subtopology_id in sorted(found):
        indexes, epochs = zip(*sorted(found[subtopology_id]), strict=True)
        rows.append(wire.CurrentTaskIds(subtopology_id, indexes, epochs))
    return rows


def _encode_plain(tasks: Collection[TaskId]) -> list[wire.CurrentTaskIds]:
    return [wire.CurrentTaskIds(each, indexes) for each, indexes in by_subtopology(tasks)]


def _encode_subtopology(each: Subtopology) -> wire.StoredSubtopology:
    # A copartition group refers to the two lists of source topics by index.
    sources = {name: index for index, name in enumerate(each.source_topics)}
    repartition = {topic.name: index for index, topic in enumerate(each.repartition_sources)}
    return wire.StoredSubtopology(
        subtopology_id=each.subtopology_id,
        source_topics=each.source_topics,
        state_changelog_topics=[_encode_topic(topic) for topic in each.changelogs],
        repartition_sink_topics=each.repartition_sinks,
        repartition_source_topics=[_encode_topic(topic) for topic in each.repartition_sources],
        copartition_groups=[
            wire.StoredCopartitionGroup(
                source_topics=sorted(sources[name] for name in group if name in sources),
                repartition_source_topics=sorted(repartition[name] for name in group if name in repartition),
            )
            for group in each.copartition_groups
        ],
    )


def _encode_topic(topic: InternalTopic) -> wire.StoredTopicInfo:
    configs = [wire.StoredTopicConfig(name, text) for name, text in topic.configs]
    return wire.StoredTopicInfo(topic.name, topic.partitions, topic.replication_factor, configs)


def decode_streams_entry(kind: int, key: bytes, value: Buffer | None) -> StreamsEntry:
    """Return the entry of a record whose key is of one of `STREAMS_KEYS`.

    Raises:
        KafkaWireError: the bytes are malformed, or of an unknown version.
    """
    found = _decode_key(RecordKind(kind), key)
    return StreamsEntry(found, None if value is None else _decode_value(found, version_of(value), value))


def _decode_key(kind: RecordKind, key: bytes) -> StreamsKey:
    match kind:
        case RecordKind.MEMBER:
            member, _ = decode_as(wire.StreamsGroupMemberMetadataKey, kind, key, 2)
            return StreamsKey(kind, member.group_id, member.member_id)
        case RecordKind.TARGET:
            target, _ = decode_as(wire.StreamsGroupTargetAssignmentMemberKey, kind, key, 2)
            return StreamsKey(kind, target.group_id, target.member_id)
        case RecordKind.CURRENT:
            current, _ = decode_as(wire.StreamsGroupCurrentMemberAssignmentKey, kind, key, 2)
            return StreamsKey(kind, current.group_id, current.member_id)
        case RecordKind.EPOCH:
            return StreamsKey(kind, decode_as(wire.StreamsGroupMetadataKey, kind, key, 2)[0].group_id)
        case RecordKind.TARGET_EPOCH:
            epoch, _ = decode_as(wire.StreamsGroupTargetAssignmentMetadataKey, kind, key, 2)
            return StreamsKey(kind, epoch.group_id)
        case RecordKind.TOPOLOGY:
            return StreamsKey(kind, decode_as(wire.StreamsGroupTopologyKey, kind, key, 2)[0].group_id)


def _decode_value(key: StreamsKey, version: int, value: Buffer) -> StreamsValue:
    match key.kind:
        case RecordKind.EPOCH:
            group, _ = decode_as(wire.StreamsGroupMetadataValue, version, value, 2)
            configs = tuple((each.key, each.value) for each in group.last_assignment_configs or ())
            return GroupEpoch(group.epoch, group.metadata_hash, group.validated_topology_epoch, configs)
        case RecordKind.MEMBER:
            member, _ = decode_as(wire.StreamsGroupMemberMetadataValue, version, value, 2)
            return _decode_member(key.member_id, member)
        case RecordKind.TARGET_EPOCH:
            epoch, _ = decode_as(wire.StreamsGroupTargetAssignmentMetadataValue, version, value, 2)
            return TargetEpoch(epoch.assignment_epoch, epoch.assignment_timestamp)
        case RecordKind.TARGET:
            target, _ = decode_as(wire.StreamsGroupTargetAssignmentMemberValue, version, value, 2)
            return Tasks(_decode_plain(target.active_tasks), _decode_plain(target.standby_tasks))
        case RecordKind.CURRENT:
            current, _ = decode_as(wire.StreamsGroupCurrentMemberAssignmentValue, version, value, 2)
            return _decode_current(current)
        case RecordKind.TOPOLOGY:
            topology, _ = decode_as(wire.StreamsGroupTopologyValue, version, value, 2)
            return Topology(topology.epoch, tuple(map(_decode_subtopology, topology.subtopologies)))


def _decode_member(member_id: str, member: wire.StreamsGroupMemberMetadataValue) -> StreamsMember:
    endpoint = member.user_endpoint
    return StreamsMember(
        member_id=member_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        tags=tuple((tag.key, tag.value) for tag in member.client_tags),
    )


def _decode_plain(rows: Iterable[wire.TargetTaskIds | wire.CurrentTaskIds]) -> frozenset[TaskId]:
    return frozenset(TaskId(row.subtopology_id, index) for row in rows for index in row.partitions)


def _decode_epoched(rows: Iterable[wire.CurrentTaskIds], member_epoch: int) -> dict[TaskId, int]:
    """Decode active tasks. Kafka before 4.3 wrote no epochs; the member epoch is the safe value."""
    found: dict[TaskId, int] = {}
    for row in rows:
        epochs = row.assignment_epochs or [member_epoch] * len(row.partitions)
        if len(epochs) != len(row.partitions):
            raise KafkaWireError(f"{len(row.partitions)} tasks have {len(epochs)} epochs")
        tasks = (TaskId(row.subtopology_id, index) for index in row.partitions)
        found.update(zip(tasks, epochs, strict=True))
    return found


def _decode_current(current: wire.StreamsGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    try:
        state = MemberState(current.state)
    except ValueError:
        raise KafkaWireError(f"{current.state} is not a member state") from None
    return CurrentAssignment(
        current.member_epoch,
        current.previous_member_epoch,
        state,
        _decode_epoched(current.active_tasks, current.member_epoch),
        _decode_plain(current.standby_tasks),
        _decode_epoched(current.active_tasks_pending_revocation, current.member_epoch),
        _decode_plain(current.standby_tasks_pending_revocation),
    )


def _decode_subtopology(each: wire.StoredSubtopology) -> Subtopology:
    repartition = tuple(map(_decode_topic, each.repartition_source_topics))
    return Subtopology(
        subtopology_id=each.subtopology_id,
        source_topics=tuple(each.source_topics),
        repartition_sources=repartition,
        repartition_sinks=tuple(each.repartition_sink_topics),
        changelogs=tuple(map(_decode_topic, each.state_changelog_topics)),
        copartition_groups=tuple(
            frozenset(
                _at(each.source_topics, group.source_topics)
                + _at([topic.name for topic in repartition], group.repartition_source_topics)
            )
            for group in each.copartition_groups
        ),
    )


def _at(names: Sequence[str], indexes: Iterable[int]) -> list[str]:
    try:
        return [names[index] for index in indexes if index >= 0]
    except IndexError:
        raise KafkaWireError("a copartition group refers to a topic that does not exist") from None


def _decode_topic(topic: wire.StoredTopicInfo) -> InternalTopic:
    configs = tuple((each.key, each.value) for each in topic.topic_configs)
    return InternalTopic(topic.name, topic.partitions, topic.replication_factor, configs)
