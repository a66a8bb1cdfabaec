"""One pass of a Fetch over its partitions: what is in memory, what is not, what is refused.

What lives here: the size rules (KIP-74) and the errors per partition, synchronously. Waiting for data or for the object store is `fetch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_response import TOPIC_ID_MIN, FetchedPartition, FetchedTopic, FetchNodeEndpoint
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest
from s3stream.errors import S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.handlers.leader_hints import leader_hint
from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager

READ_COMMITTED: Final = 1


@dataclass(slots=True)
class FetchPart:
    """One partition of the request and what was found for it so far."""

    topic: str | bytes
    wanted: FetchPartition
    answer: FetchedPartition
    partition: Partition | None = None
    is_cold: bool = False
    """Its data is in objects only."""


@dataclass(slots=True)
class FetchPass:
    """The result of one pass, in the request's order."""

    parts: list[FetchPart] = field(default_factory=list)
    bytes_found: int = 0
    bytes_left: int = 0
    """Room in the answer; below 1 only a first batch may still be added."""
    has_error: bool = False

    @property
    def cold(self) -> list[FetchPart]:
        """Partitions that need the object store."""
        return [part for part in self.parts if part.is_cold]

    def add_records(self, part: FetchPart, records: Sequence[StreamRecord]) -> None:
        """Take records into the answer: all of them fit, or there is one and it is the answer's first."""
        part.answer.records = [record.payload for record in records]
        size = sum(map(len, part.answer.records))
        self.bytes_found += size
        self.bytes_left -= size

    def may_add(self, records: Sequence[StreamRecord]) -> bool:
        """The first batch of the whole answer is added however big, every other only if it fits."""
        return bool(records) and (self.bytes_found == 0 or len(records[0].payload) <= self.bytes_left)

    def refuse(self, part: FetchPart, error: PartitionError) -> None:
        """The partition's answer is an error."""
        code = error.code
        if code is ErrorCode.REQUEST_TIMED_OUT:
            code = (
                ErrorCode.KAFKA_STORAGE_ERROR
            )  # Java's consumer knows this one in a Fetch, and dies of the other
        part.answer = FetchedPartition(part.wanted.partition, error_code=code)
        part.is_cold = False
        self.has_error = True


class FetchReader:
    """Looks at partitions on behalf of Fetch."""

    def __init__(self, partitions: PartitionManager) -> None:
        self._partitions = partitions

    def read(self, request: FetchRequest, version: int, bytes_max: int) -> FetchPass:
        """One pass: reads what memory has."""
        found = FetchPass(bytes_left=bytes_max)
        for topic, wanted in _wanted(request, version):
            part = FetchPart(topic, wanted, FetchedPartition(wanted.partition))
            found.parts.append(part)
            try:
                self._read_part(found, part, is_committed=request.isolation_level == READ_COMMITTED)
            except PartitionError as error:
                found.refuse(part, error)
                self._add_hint(part, error)
            except S3StreamError as error:
                found.refuse(part, storage_error(error))
        return found

    def _read_part(self, found: FetchPass, part: FetchPart, *, is_committed: bool) -> None:
        wanted = part.wanted
        partition = self._partitions.find(part.topic, wanted.partition)
        partition.check_epoch(wanted.current_leader_epoch)
        part.partition = partition
        describe(part.answer, partition, is_committed=is_committed)
        room = min(wanted.partition_max_bytes, found.bytes_left)
        if room <= 0 and found.bytes_found > 0:
            partition.check_offset(wanted.fetch_offset)
            return
        records = partition.read_cached(wanted.fetch_offset, max(room, 1))
        if records is None:
            part.is_cold = True
        elif found.may_add(records):
            found.add_records(part, records)

    def _add_hint(self, part: FetchPart, error: PartitionError) -> None:
        hint = leader_hint(self._partitions.topics, part.topic, part.wanted.partition, error.code)
        if hint is not None:
            part.answer.current_leader = (hint.leader_id, hint.leader_epoch)

    def endpoints(self, found: FetchPass) -> list[FetchNodeEndpoint]:
        """Addresses of the leaders that the answer hints at."""
        ids = {
            part.answer.current_leader[0]: None
            for part in found.parts
            if part.answer.current_leader is not None
        }
        brokers = [self._partitions.topics.broker(node_id) for node_id in ids]
        return [FetchNodeEndpoint(*broker) for broker in brokers if broker is not None]


def describe(answer: FetchedPartition, partition: Partition, *, is_committed: bool) -> None:
    """Fill in the partition's offsets. Without transactions the last stable offset is the high watermark, and none is aborted."""
    answer.high_watermark = partition.high_watermark
    answer.last_stable_offset = partition.high_watermark
    answer.log_start_offset = partition.log_start_offset
    answer.aborted_transactions = () if is_committed else None


def group_by_topic(found: FetchPass, version: int) -> list[FetchedTopic]:
    """The parts as the answer's topics, in the request's order."""
    topics: list[FetchedTopic] = []
    rows: list[FetchedPartition] = []
    last: str | bytes | None = None
    for part in found.parts:
        if part.topic != last:
            rows = []
            last = part.topic
            if isinstance(last, bytes):
                assert version >= TOPIC_ID_MIN
                topics.append(FetchedTopic(rows, topic_id=last))
            else:
                topics.append(FetchedTopic(rows, name=last))
        rows.append(part.answer)
    return topics


def _wanted(request: FetchRequest, version: int) -> Iterator[tuple[str | bytes, FetchPartition]]:
    for topic in request.topics:
        name: str | bytes = topic.topic_id if version >= TOPIC_ID_MIN else topic.topic
        for partition in topic.partitions:
            yield name, partition
