"""Offsets of groups with Kafka's own requests: read with their lag, and reset."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeVar

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from ponor_kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

from ponor_cli.clients.coordinators import Brokers
from ponor_cli.clients.groups import GroupType, ListedGroup, Place, at_coordinator, raise_for
from ponor_cli.clients.kafka_client import error_name
from ponor_cli.clients.reassignments import places_of
from ponor_cli.errors import CommandError

T = TypeVar("T")
EARLIEST: Final = -2
LATEST: Final = -1
"""Timestamps of ListOffsets."""
NO_OFFSET: Final = -1
PARTITIONS_PER_REQUEST: Final = 1_000
NAMES_VERSION: Final = 9
"""The last version of OffsetFetch and OffsetCommit that names topics; later ones use topic ids."""
_WHOLE_ERRORS: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH})
"""Errors of a commit without a member if a member has joined meanwhile."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A group's offset in one partition: the committed one, or the start offset of a share group.

    Attributes:
        offset: None if the group has none yet.
        end_offset: None if the partition's leader does not answer, or the partition is deleted.
        lag: records that the group has not processed; None if unknown.
    """

    place: Place
    offset: int | None
    end_offset: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where offsets are reset to: exactly one of an absolute offset, a distance, and a timestamp (wall clock
    in ms, EARLIEST or LATEST).
    """

    offset: int | None = None
    shift: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset of one partition; `before` is None if the group had no offset."""

    place: Place
    before: int | None
    after: int


def offsets_of(brokers: Brokers, group: ListedGroup, also: Iterable[Place] = ()) -> list[GroupOffset]:
    """Return the offsets of a group by topic and partition; include the partitions of `also`.

    Raises:
        CommandError: the coordinator refuses.
    """
    is_share = group.type == GroupType.SHARE
    read = _share_offsets if is_share else _committed
    rows = {**dict.fromkeys(also, (None, None)), **read(brokers, group.group_id)}
    leaders = known_leaders(brokers, {topic for topic, _ in rows})
    ends = offsets_at(brokers, leaders, rows, LATEST)
    found = []
    for place, (offset, share_lag) in sorted(rows.items()):
        end = ends.get(place)
        lag = None if offset is None or end is None else max(0, end - offset)
        found.append(GroupOffset(place, offset, end, share_lag if is_share else lag))
    return found


def planned(
    brokers: Brokers, offsets: Iterable[GroupOffset], places: Collection[Place], target: ResetTarget
) -> list[Reset]:
    """Return the resets of these partitions. An offset outside of the log becomes the nearest one inside.

    Raises:
        CommandError: a partition does not exist or its leader does not answer, or an offset that the target
            shifts is missing.
    """
    before = {each.place: each.offset for each in offsets}
    leaders = known_leaders(brokers, {topic for topic, _ in places})
    starts = offsets_at(brokers, leaders, places, EARLIEST)
    ends = offsets_at(brokers, leaders, places, LATEST)
    timestamp = target.timestamp_ms
    timed = {} if timestamp is None else offsets_at(brokers, leaders, places, timestamp)
    resets = []
    for place in sorted(places):
        if place not in starts or place not in ends:
            raise CommandError(
                f"partition {place[0]}-{place[1]} does not exist, or its leader does not answer;"
                f" `ponor topic describe {place[0]}` shows the partitions"
            )
        wanted = target.offset
        if target.shift is not None:
            present = before.get(place)
            if present is None:
                raise CommandError(
                    f"the group has no offset in {place[0]}-{place[1]} that could be shifted;"
                    " use --to-earliest, --to-latest or --to-offset"
                )
            wanted = present + target.shift
        elif wanted is None:
            # There may be no record at or after the time: the group then continues at the end.
            wanted = timed.get(place, ends[place])
        after = min(max(wanted, starts[place]), ends[place])
        resets.append(Reset(place, before.get(place), after))
    return resets


def apply_resets(brokers: Brokers, group: ListedGroup, resets: Sequence[Reset]) -> None:
    """Write the new offsets.

    Raises:
        CommandError: the coordinator refuses a partition; those before it may be reset already.
    """
    write = _alter_share_offsets if group.type == GroupType.SHARE else _commit
    for some in _parts(resets):
        write(brokers, group.group_id, some)


def known_leaders(brokers: Brokers, topics: Collection[str]) -> dict[Place, int]:
    """Return the leaders of the partitions of those topics that exist."""
    if not topics:
        return {}
    existing = [
        topic.name
        for topic in brokers.any.metadata(sorted(topics)).topics
        if topic.error_code == ErrorCode.NONE and topic.name is not None
    ]
    places = places_of(brokers.any, existing) if existing else []
    return {(each.topic, each.partition): each.leader_id for each in places}


def offsets_at(
    brokers: Brokers, leaders: Mapping[Place, int], places: Iterable[Place], timestamp_ms: int
) -> dict[Place, int]:
    """Return the offsets at a timestamp, without partitions that have none, or whose leader is not live."""
    led: dict[int, list[Place]] = {}
    for place in sorted(places):
        if leaders.get(place) in brokers.node_ids:
            led.setdefault(leaders[place], []).append(place)
    found: dict[Place, int] = {}
    for leader_id, own in led.items():
        for some in _parts(own):
            topics = [
                ListOffsetsTopic(topic, [ListOffsetsPartition(index, -1, timestamp_ms) for _, index in rows])
                for topic, rows in groupby(some, key=itemgetter(0))
            ]
            response = brokers.of(leader_id).call(ListOffsetsRequest(-1, 0, topics), ListOffsetsResponse)
            found.update(
                ((topic.name, row.partition_index), row.offset)
                for topic in response.topics
                for row in topic.partitions
                if row.error_code == ErrorCode.NONE and row.offset != NO_OFFSET
            )
    return found


def _committed(brokers: Brokers, group_id: str) -> dict[Place, tuple[int | None, int | None]]:
    """Return the committed offset by partition; the coordinator does not know the lag."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id, topics=None)])
    response = at_coordinator(
        brokers,
        group_id,
        request,
        OffsetFetchResponse,
        lambda answer: answer.groups[0].error_code,
        version_max=NAMES_VERSION,
    )
    row = response.groups[0]
    raise_for(group_id, row.error_code)
    return {
        (topic.name, each.partition_index): (each.committed_offset, None)
        for topic in row.topics
        for each in topic.partitions
        if each.error_code == ErrorCode.NONE and each.committed_offset != NO_OFFSET
    }


def _share_offsets(brokers: Brokers, group_id: str) -> dict[Place, tuple[int | None, int | None]]:
    """Return start offset and lag by partition."""
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group_id, None)])
    response = at_coordinator(
        brokers,
        group_id,
        request,
        DescribeShareGroupOffsetsResponse,
        lambda answer: answer.groups[0].error_code,
    )
    row = response.groups[0]
    raise_for(group_id, row.error_code, row.error_message)
    return {
        (topic.topic_name, each.partition_index): (
            None if each.start_offset < 0 else each.start_offset,
            None if each.lag < 0 else each.lag,
        )
        for topic in row.topics
        for each in topic.partitions
        if each.error_code == ErrorCode.NONE
    }


def _commit(brokers: Brokers, group_id: str, resets: Sequence[Reset]) -> None:
    topics = [
        OffsetCommitRequestTopic(
            topic, partitions=[OffsetCommitRequestPartition(each.place[1], each.after) for each in rows]
        )
        for topic, rows in groupby(resets, key=lambda each: each.place[0])
    ]
    response = at_coordinator(
        brokers,
        group_id,
        OffsetCommitRequest(group_id, topics=topics),
        OffsetCommitResponse,
        lambda answer: answer.topics[0].partitions[0].error_code,
        version_max=NAMES_VERSION,
    )
    for topic in response.topics:
        for row in topic.partitions:
            is_taken = row.error_code in _WHOLE_ERRORS
            raise_for(group_id, ErrorCode.NON_EMPTY_GROUP if is_taken else ErrorCode.NONE)
            _raise_for_partition(group_id, (topic.name, row.partition_index), row.error_code)


def _alter_share_offsets(brokers: Brokers, group_id: str, resets: Sequence[Reset]) -> None:
    topics = [
        AlterShareGroupOffsetsRequestTopic(
            topic, [AlterShareGroupOffsetsRequestPartition(each.place[1], each.after) for each in rows]
        )
        for topic, rows in groupby(resets, key=lambda each: each.place[0])
    ]
    response = at_coordinator(
        brokers,
        group_id,
        AlterShareGroupOffsetsRequest(group_id, topics),
        AlterShareGroupOffsetsResponse,
        lambda answer: answer.error_code,
    )
    raise_for(group_id, response.error_code, response.error_message)
    for topic in response.responses:
        for row in topic.partitions:
            _raise_for_partition(group_id, (topic.topic_name, row.partition_index), row.error_code)


def _raise_for_partition(group_id: str, place: Place, code: int) -> None:
    if code != ErrorCode.NONE:
        raise CommandError(f"group {group_id}: the offset of {place[0]}-{place[1]}: {error_name(code)}")


def _parts(rows: Sequence[T]) -> Iterable[Sequence[T]]:
    """Split rows into requests of a bounded size."""
    return (rows[at : at + PARTITIONS_PER_REQUEST] for at in range(0, len(rows), PARTITIONS_PER_REQUEST))
