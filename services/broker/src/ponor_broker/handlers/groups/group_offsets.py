"""OffsetCommit, OffsetFetch and OffsetDelete: committed positions of a group.

The image provides existing partitions and topic ids. Version 10 names topics by id. Stored topic
ids keep the offsets of a deleted topic from being returned for a new topic with the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ponor_kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ponor_runtime.clock import Clock
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.ports import TopicDirectory
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.handlers.groups.commit_rows import EXISTS, CommitRows
from ponor_broker.requests.api_handler import RequestContext

TOPIC_IDS_FROM: Final = 10
GROUPS_FROM: Final = 8
MEMBER_EPOCHS_FROM: Final = 9
"""First version in which members of consumer groups send their epochs."""
GROUP_NOT_FOUND_FROM: Final = 9
"""In earlier versions a commit by a member of a missing group gets ILLEGAL_GENERATION."""
NOTHING: Final = CommittedOffset(offset=-1)
"""Result for a partition without a commit; not an error."""

ROWS_PER_STEP: Final = 1_000
"""Rows of an OffsetFetch answer that are built in one step."""
R = TypeVar("R")

Found: TypeAlias = tuple[TopicPartition, CommittedOffset | ErrorCode | None]


class _Reader(NamedTuple):
    """The group of an OffsetFetch, and the member that sends it. `member_id` is None if no member sent it."""

    group_id: str
    member_id: str | None
    member_epoch: int


class GroupOffsetsHandlers:
    """Commits are answered when they are durable."""

    def __init__(self, coordinator: GroupCoordinator, topics: TopicDirectory, clock: Clock) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._rows = CommitRows(coordinator, topics, clock)
        self._turns = Turns()

    # --- OffsetCommit

    async def commit(self, request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
        """OffsetCommit. Return an error for each partition that does not exist; commit the others together.

        As in Kafka, an error of the group replaces a partition's OFFSET_METADATA_TOO_LARGE. If no partition
        exists, the group is neither checked nor created.
        """
        by_id = context.api_version >= TOPIC_IDS_FROM
        commits: dict[TopicPartition, CommittedOffset] = {}
        answers: list[OffsetCommitResponseTopic] = []
        existing: list[OffsetCommitResponsePartition] = []
        for topic in request.topics:
            name = self._name_of(topic.topic_id) if by_id else topic.name
            answer = OffsetCommitResponseTopic(topic.name, topic.topic_id, partitions=[])
            rows: list[OffsetCommitResponsePartition] = []
            for partition in topic.partitions:
                error = self._rows.refusal_of(name, partition)
                row = OffsetCommitResponsePartition(partition.partition_index, error)
                rows.append(row)
                if error in EXISTS:
                    existing.append(row)
                if error is ErrorCode.NONE:
                    assert name is not None
                    commits[name, partition.partition_index] = self._rows.committed(
                        name, partition, request.retention_time_ms
                    )
            answer.partitions = rows
            answers.append(answer)
        if existing:
            error = await self._commit(request, commits, context.api_version)
            if error is not ErrorCode.NONE:
                for row in existing:
                    row.error_code = error
        return OffsetCommitResponse(topics=answers)

    async def _commit(
        self, request: OffsetCommitRequest, commits: Mapping[TopicPartition, CommittedOffset], version: int
    ) -> ErrorCode:
        claim = MemberClaim(
            request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        )
        error = await self._coordinator.commit_offsets(
            request.group_id, claim, commits, knows_epochs=version >= MEMBER_EPOCHS_FROM
        )
        if error is ErrorCode.GROUP_ID_NOT_FOUND and version < GROUP_NOT_FOUND_FROM:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _name_of(self, topic_id: bytes) -> str | None:
        return self._topics.topic_name(UUID(bytes=topic_id))

    # --- OffsetFetch

    async def fetch(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
        """OffsetFetch."""
        version = context.api_version
        await self._coordinator.shards.decided(
            [group.group_id for group in request.groups] or [request.group_id]
        )
        if version >= GROUPS_FROM:
            # Each group once: it may have thousands of offsets, and a request may name it a million times.
            topics_of: dict[tuple[str, bool], list[OffsetFetchRequestTopics]] = {}
            readers: dict[str, _Reader] = {}
            for each in request.groups:
                reader = _Reader(each.group_id, each.member_id, each.member_epoch)
                readers.setdefault(each.group_id, reader)
                topics_of.setdefault((each.group_id, each.topics is None), []).extend(each.topics or ())
            groups = [
                await self._fetch_group(
                    readers[group_id],
                    None if is_all else topics,
                    version,
                    require_stable=request.require_stable,
                )
                for (group_id, is_all), topics in topics_of.items()
            ]
            return OffsetFetchResponse(groups=groups)
        wanted = (
            None
            if request.topics is None
            else _each_once(
                (topic.name, index) for topic in request.topics for index in topic.partition_indexes
            )
        )
        found = self._coordinator.fetch_offsets(
            request.group_id, wanted, require_stable=request.require_stable
        )
        error = found if isinstance(found, ErrorCode) else ErrorCode.NONE
        if isinstance(found, ErrorCode):
            # From version 2 on, Kafka's answer has no rows. aiokafka 0.14 ignores the error of the whole
            # answer and would treat missing rows as partitions without a commit.
            found = [(partition, None) for partition in wanted or ()]

        def row(index: int, committed: CommittedOffset, of_row: ErrorCode) -> OffsetFetchResponsePartition:
            return OffsetFetchResponsePartition(
                index, committed.offset, committed.leader_epoch, committed.metadata, error or of_row
            )

        by_topic = await self._turns.run_short(self._by_topic(found, row))
        topics = [OffsetFetchResponseTopic(name, rows) for name, rows in by_topic.items()]
        return OffsetFetchResponse(topics=topics, error_code=error)

    async def _fetch_group(
        self,
        reader: _Reader,
        asked: Sequence[OffsetFetchRequestTopics] | None,
        version: int,
        *,
        require_stable: bool,
    ) -> OffsetFetchResponseGroup:
        by_id, group_id = version >= TOPIC_IDS_FROM, reader.group_id
        unknown: list[OffsetFetchResponseTopics] = []
        wanted: list[TopicPartition] | None = None
        if asked is not None:
            known: list[TopicPartition] = []
            for topic in asked:
                name = self._name_of(topic.topic_id) if by_id else topic.name
                if name is None:
                    unknown.append(_unknown_topic(topic.topic_id, topic.partition_indexes))
                else:
                    known.extend((name, index) for index in topic.partition_indexes)
            wanted = _each_once(known)
        found = self._coordinator.fetch_offsets(
            group_id,
            wanted,
            require_stable=require_stable,
            member_id=reader.member_id,
            member_epoch=reader.member_epoch,
        )
        if isinstance(found, ErrorCode):
            return OffsetFetchResponseGroup(group_id, error_code=found)
        by_topic = await self._turns.run_short(self._by_topic(found, _row))
        topics = [
            OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=rows)
            for name, rows in by_topic.items()
            for topic_id in (self._id_of(name),)
            if topic_id != ZERO_UUID or not by_id  # a deleted topic has no id for the answer
        ]
        return OffsetFetchResponseGroup(group_id, topics=topics + unknown)

    def _by_topic(
        self, found: Sequence[Found], row: Callable[[int, CommittedOffset, ErrorCode], R]
    ) -> Steps[dict[str, list[R]]]:
        """Build the rows of the answer by topic, in the order of first occurrence.

        An offset that was committed to a deleted topic is hidden if a new topic has the same name.
        """
        by_topic: dict[str, tuple[list[R], UUID | None]] = {}
        for number, ((name, index), committed) in enumerate(found, 1):
            known = by_topic.get(name)
            if known is None:
                known = by_topic[name] = [], self._topics.topic_id(name)
            rows, topic_id = known
            if isinstance(committed, ErrorCode):
                rows.append(row(index, NOTHING, committed))
            elif committed is None or _is_of_deleted(committed, topic_id):
                rows.append(row(index, NOTHING, ErrorCode.NONE))
            else:
                rows.append(row(index, committed, ErrorCode.NONE))
            if number % ROWS_PER_STEP == 0:
                yield
        return {name: rows for name, (rows, _) in by_topic.items()}

    def _id_of(self, name: str) -> bytes:
        topic_id = self._topics.topic_id(name)
        return ZERO_UUID if topic_id is None else topic_id.bytes

    # --- OffsetDelete

    async def delete(self, request: OffsetDeleteRequest, _: RequestContext) -> OffsetDeleteResponse:
        """OffsetDelete (KIP-496). The coordinator refuses partitions of topics that members subscribe to."""
        known = [
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
            if 0 <= partition.partition_index < (self._topics.partition_count(topic.name) or 0)
        ]
        answers = await self._coordinator.delete_offsets(request.group_id, known)
        if isinstance(answers, ErrorCode):
            return OffsetDeleteResponse(error_code=answers)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(
                    topic.name,
                    [
                        OffsetDeleteResponsePartition(index, answers.get((topic.name, index), missing))
                        for index in dict.fromkeys(each.partition_index for each in topic.partitions)
                    ],
                )
                for topic in request.topics
            ]
        )


def _is_of_deleted(committed: CommittedOffset, topic_id: UUID | None) -> bool:
    """Return whether the offset was committed to a deleted topic with the name of an existing one."""
    return committed.topic_id is not None and topic_id is not None and topic_id.bytes != committed.topic_id


def _each_once(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return each partition once, in order of first occurrence. A row of the answer may have 4 KiB of
    metadata, and a request may name a partition a million times.
    """
    return list(dict.fromkeys(partitions))


def _row(
    index: int, committed: CommittedOffset, error: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        index, committed.offset, committed.leader_epoch, committed.metadata, error
    )


def _unknown_topic(topic_id: bytes, indexes: Iterable[int]) -> OffsetFetchResponseTopics:
    rows = [_row(index, NOTHING, ErrorCode.UNKNOWN_TOPIC_ID) for index in indexes]
    return OffsetFetchResponseTopics(topic_id=topic_id, partitions=rows)
