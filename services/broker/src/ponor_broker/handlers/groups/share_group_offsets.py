"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets (KIP-932, KIP-1226).

The offsets are the start offsets of share partitions. The persister has them; the group knows for which
partitions they exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from ponor_kafka.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from ponor_kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

from ponor_broker.coordination.ports import TopicDirectory
from ponor_broker.coordination.share_persister import SharePartitionKey, SharePersister, StateSummary
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.share.state_partitions import TopicStates
from ponor_broker.groups.share_groups import Results
from ponor_broker.handlers.offsets.end_offsets import EndOffsets, TopicPartition
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather
from ponor_broker.requests.request_rows import check_rows

NOWHERE: Final = -1
DESCRIBED_TOGETHER_MAX: Final = 64
"""Share partitions of one group whose state is read at a time."""
GROUPS_TOGETHER_MAX: Final = 8
"""Groups of one request that are described at a time."""
_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class EndOffsetsPort(Protocol):
    """Finds the ends of partitions at their leaders."""

    async def find(self, partitions: Iterable[TopicPartition]) -> EndOffsets:
        """Return the high watermark of each partition, or the error."""
        ...


class _Topic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: Iterable[int]


class ShareGroupOffsetsHandlers:
    """Handlers for administration tools."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        persister: SharePersister,
        topics: TopicDirectory,
        ends: EndOffsetsPort,
    ) -> None:
        self._coordinator = coordinator
        self._persister = persister
        self._topics = topics
        self._ends = ends

    # --- DescribeShareGroupOffsets

    async def describe(
        self, request: DescribeShareGroupOffsetsRequest, _: RequestContext
    ) -> DescribeShareGroupOffsetsResponse:
        """DescribeShareGroupOffsets; null as the topics of a group means all that have offsets."""
        check_rows(sum(1 + len(topic.partitions) for group in request.groups for topic in group.topics or ()))
        groups = {group.group_id: group for group in request.groups}
        described = await bounded_gather(
            map(self._described, groups.values()), together_max=GROUPS_TOGETHER_MAX
        )
        return DescribeShareGroupOffsetsResponse(groups=described)

    async def _described(
        self, group: DescribeShareGroupOffsetsRequestGroup
    ) -> DescribeShareGroupOffsetsResponseGroup:
        shares = await self._coordinator.share_groups(group.group_id)
        if isinstance(shares, ErrorCode):
            return DescribeShareGroupOffsetsResponseGroup(
                group_id=group.group_id, error_code=shares, error_message=shares.meaning
            )
        if group.topics is None:
            rows = self._existing(shares.initialized(group.group_id))
        else:
            rows = [
                _Topic(each.topic_name, self._id_of(each.topic_name), dict.fromkeys(each.partitions))
                for each in group.topics
            ]
        summaries = await self._summaries(group.group_id, rows)
        ends = await self._ends.find(
            partition
            for partition, summary in summaries.items()
            if isinstance(summary, StateSummary) and _has_lag(summary)
        )
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group.group_id,
            topics=[
                DescribeShareGroupOffsetsResponseTopic(
                    row.name,
                    row.topic_id,
                    [_offset(index, (row.name, index), summaries, ends) for index in row.partitions],
                )
                for row in rows
            ],
        )

    async def _summaries(
        self, group_id: str, rows: Sequence[_Topic]
    ) -> Mapping[TopicPartition, StateSummary | ErrorCode]:
        """Read the states of existing topics."""
        keys = {
            (row.name, index): SharePartitionKey(group_id, UUID(bytes=row.topic_id), index)
            for row in rows
            if row.topic_id != ZERO_UUID
            for index in row.partitions
        }
        found = await bounded_gather(
            map(self._persister.summary, keys.values()), together_max=DESCRIBED_TOGETHER_MAX
        )
        return dict(zip(keys, found, strict=True))

    def _existing(self, partitions: Mapping[bytes, frozenset[int]]) -> list[_Topic]:
        named = ((self._topics.topic_name(UUID(bytes=each)), each) for each in partitions)
        return [
            _Topic(name, topic_id, sorted(partitions[topic_id]))
            for name, topic_id in named
            if name is not None
        ]

    def _id_of(self, name: str) -> bytes:
        topic_id = self._topics.topic_id(name)
        return ZERO_UUID if topic_id is None else topic_id.bytes

    # --- AlterShareGroupOffsets

    async def alter(
        self, request: AlterShareGroupOffsetsRequest, _: RequestContext
    ) -> AlterShareGroupOffsetsResponse:
        """AlterShareGroupOffsets."""
        check_rows(sum(1 + len(topic.partitions) for topic in request.topics))
        if not request.group_id:
            return _alter_error(ErrorCode.INVALID_GROUP_ID)
        states: dict[bytes, TopicStates] = {}
        starts: dict[tuple[bytes, int], int] = {}
        for topic in request.topics:
            count = self._topics.partition_count(topic.topic_name) or 0
            topic_id = self._id_of(topic.topic_name)
            known = {each.partition_index for each in topic.partitions if 0 <= each.partition_index < count}
            if known:
                states[topic_id] = TopicStates(topic.topic_name, frozenset(known))
                starts |= {(topic_id, each.partition_index): each.start_offset for each in topic.partitions}
        shares = await self._coordinator.share_groups(request.group_id)
        if isinstance(shares, ErrorCode):
            return _alter_error(shares)
        results = await shares.alter_offsets(request.group_id, states, starts) if states else {}
        if isinstance(results, ErrorCode):
            return _alter_error(results)
        return AlterShareGroupOffsetsResponse(
            responses=[self._altered(topic, results) for topic in request.topics]
        )

    def _altered(
        self, topic: AlterShareGroupOffsetsRequestTopic, results: Results
    ) -> AlterShareGroupOffsetsResponseTopic:
        topic_id = self._id_of(topic.topic_name)
        rows: list[AlterShareGroupOffsetsResponsePartition] = []
        for partition in topic.partitions:
            error = results.get((topic_id, partition.partition_index), _UNKNOWN)
            rows.append(
                AlterShareGroupOffsetsResponsePartition(partition.partition_index, error, _message_of(error))
            )
        return AlterShareGroupOffsetsResponseTopic(topic.topic_name, topic_id, rows)

    # --- DeleteShareGroupOffsets

    async def delete(
        self, request: DeleteShareGroupOffsetsRequest, _: RequestContext
    ) -> DeleteShareGroupOffsetsResponse:
        """DeleteShareGroupOffsets."""
        check_rows(len(request.topics))
        if not request.group_id:
            return _delete_error(ErrorCode.INVALID_GROUP_ID)
        shares = await self._coordinator.share_groups(request.group_id)
        if isinstance(shares, ErrorCode):
            return _delete_error(shares)
        names = list(dict.fromkeys(topic.topic_name for topic in request.topics))
        results = await shares.delete_offsets(request.group_id, names)
        if isinstance(results, ErrorCode):
            return _delete_error(results)
        return DeleteShareGroupOffsetsResponse(
            responses=[self._deleted(name, error) for name, error in results.items()]
        )

    def _deleted(self, name: str, error: ErrorCode) -> DeleteShareGroupOffsetsResponseTopic:
        topic_id, message = self._id_of(name), _message_of(error)
        if error is _UNKNOWN:
            if topic_id != ZERO_UUID:
                message = "There is no offset information to delete."
            topic_id = ZERO_UUID  # as in Kafka
        return DeleteShareGroupOffsetsResponseTopic(name, topic_id, error, message)


def _has_lag(summary: StateSummary) -> bool:
    """Whether the number of records that are not final is known (KIP-1226)."""
    return NOWHERE not in {summary.start_offset, summary.delivery_complete_count}


def _offset(
    index: int,
    partition: TopicPartition,
    summaries: Mapping[TopicPartition, StateSummary | ErrorCode],
    ends: EndOffsets,
) -> DescribeShareGroupOffsetsResponsePartition:
    # As in Kafka, an unknown topic is no error here.
    summary = summaries.get(partition, ErrorCode.NONE)
    end_offset = ends.get(partition, NOWHERE)
    for error in (summary, end_offset):
        if isinstance(error, ErrorCode):
            return DescribeShareGroupOffsetsResponsePartition(
                index, NOWHERE, 0, NOWHERE, error_code=error, error_message=_message_of(error)
            )
    assert isinstance(summary, StateSummary)
    final = summary.start_offset + summary.delivery_complete_count
    lag = end_offset - final if _has_lag(summary) else NOWHERE
    return DescribeShareGroupOffsetsResponsePartition(index, summary.start_offset, summary.leader_epoch, lag)


def _message_of(error: ErrorCode) -> str | None:
    return None if error is ErrorCode.NONE else error.meaning


def _alter_error(error: ErrorCode) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(error_code=error, error_message=error.meaning)


def _delete_error(error: ErrorCode) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(error_code=error, error_message=error.meaning)
