"""Reads records of one topic from positions that the caller keeps: fetch, check, decode."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ponor_kafka.primitives import Records
from ponor_kafka.record_batch import LENGTH_PREFIX_BYTES, BatchView, batch_bytes
from ponor_kafka.records import Record

from ponor_cli.clients.kafka_client import KafkaClient, error_name
from ponor_cli.errors import CommandError
from ponor_cli.records.leader_connections import LeaderConnections

EARLIEST: Final = -2
LATEST: Final = -1
WAIT_MS: Final = 500
"""Of one fetch: how long Ctrl-C and a group's heartbeat may have to wait."""
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
PARTITION_BYTES_MAX: Final = 1024 * 1024
DECOMPRESSED_BYTES_MAX: Final = 1 << 30
_NAMES_VERSION_MAX: Final = 12
"""From 13 on Fetch names topics by id."""
_NO_SESSION_EPOCH: Final = -1
_READ_COMMITTED: Final = 1


class TopicReader:
    """Positions by partition; `poll` moves them."""

    def __init__(self, leaders: LeaderConnections) -> None:
        self._leaders = leaders
        self.positions: dict[int, int] = {}
        self._tries: dict[int, int] = defaultdict(int)

    def assign(self, positions: Mapping[int, int]) -> None:
        """Read these partitions from these offsets on, and no others."""
        self.positions = dict(positions)

    def offsets(self, partitions: list[int], timestamp: int) -> dict[int, int]:
        """EARLIEST, LATEST, or the first offset at or after a time in milliseconds (the end, if there is none).

        Raises:
            CommandError: a partition is not there, or its leader refuses.
        """
        found: dict[int, int] = {}
        for partition in partitions:
            offset = self._offset(partition, timestamp)
            found[partition] = self._offset(partition, LATEST) if offset < 0 else offset
        return found

    def poll(self) -> Iterator[tuple[int, Record]]:
        """Records that there are now, in offset order within a partition; the positions follow. Waits up to WAIT_MS if there are none.

        Raises:
            CommandError: a partition cannot be read.
        """
        by_leader: dict[KafkaClient, list[int]] = defaultdict(list)
        for partition in self.positions:
            by_leader[self._leaders.leader_of(partition)].append(partition)
        for leader, partitions in by_leader.items():
            for data in self._fetch(leader, partitions, WAIT_MS // len(by_leader)):
                yield from self._take(data)

    def _fetch(self, leader: KafkaClient, partitions: list[int], wait_ms: int) -> list[PartitionData]:
        wanted = [
            FetchPartition(
                partition=partition,
                fetch_offset=self.positions[partition],
                partition_max_bytes=PARTITION_BYTES_MAX,
            )
            for partition in partitions
        ]
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            isolation_level=_READ_COMMITTED,
            session_epoch=_NO_SESSION_EPOCH,
            topics=[FetchTopic(topic=self._leaders.topic, partitions=wanted)],
        )
        response = leader.call(request, FetchResponse, version_max=_NAMES_VERSION_MAX)
        if response.error_code != ErrorCode.NONE:
            raise CommandError(f"the broker refuses to be read: {error_name(response.error_code)}")
        return [data for topic in response.responses for data in topic.partitions]

    def _take(self, data: PartitionData) -> Iterator[tuple[int, Record]]:
        partition = data.partition_index
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._reset(partition)
            return
        if data.error_code != ErrorCode.NONE:
            self._tries[partition] += 1
            if not self._leaders.may_retry(data.error_code, self._tries[partition]):
                raise CommandError(
                    f"{self._leaders.topic}-{partition} cannot be read at offset {self.positions[partition]}: {error_name(data.error_code)}"
                )
            return
        self._tries[partition] = 0
        for batch in _whole_batches(data.records):
            yield from self._records(partition, batch)

    def _records(self, partition: int, batch: BatchView) -> Iterator[tuple[int, Record]]:
        try:
            batch.check_crc()
            if not batch.is_control:
                for record in batch.records(DECOMPRESSED_BYTES_MAX):
                    if record.offset >= self.positions[partition]:
                        self.positions[partition] = record.offset + 1
                        yield partition, record
        except KafkaWireError as error:
            raise CommandError(
                f"{self._leaders.topic}-{partition}, batch at offset {batch.base_offset}: {error}; `ponor object verify` checks the objects"
            ) from error
        self.positions[partition] = max(self.positions[partition], batch.next_offset)

    def _reset(self, partition: int) -> None:
        """Retention has passed the position, or the topic was made anew: go on at the nearest offset that is there, and say so."""
        before = self.positions[partition]
        start = self._offset(partition, EARLIEST)
        self.positions[partition] = start if before < start else self._offset(partition, LATEST)
        sys.stderr.write(
            f"ponor: {self._leaders.topic}-{partition} has no offset {before}; going on at {self.positions[partition]}\n"
        )

    def _offset(self, partition: int, timestamp: int) -> int:
        wanted = ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp)
        topic = ListOffsetsTopic(name=self._leaders.topic, partitions=[wanted])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=_READ_COMMITTED, topics=[topic])
        tries = 0
        while True:
            leader = self._leaders.leader_of(partition)
            row = leader.call(request, ListOffsetsResponse).topics[0].partitions[0]
            if row.error_code == ErrorCode.NONE:
                return row.offset
            tries += 1
            if not self._leaders.may_retry(row.error_code, tries):
                raise CommandError(
                    f"{self._leaders.topic}-{partition}: its offsets are not told: {error_name(row.error_code)}"
                )


def _whole_batches(records: Records | None) -> Iterator[BatchView]:
    """The batches of an answer; Kafka may cut the last one off in its middle."""
    assert not isinstance(records, Sequence) or isinstance(records, bytes | bytearray | memoryview), (
        "decoded records are one buffer"
    )
    view = memoryview(b"" if records is None else records)
    position = 0
    while len(view) - position > LENGTH_PREFIX_BYTES:
        size = batch_bytes(view, position)
        if size > len(view) - position:
            return
        yield BatchView(view[position : position + size])
        position += size
