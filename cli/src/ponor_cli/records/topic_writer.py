"""Writes records to one topic: batches by partition, idempotent, so that a repeated request writes nothing twice."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from ponor_kafka.compression import Codec
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ponor_kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ponor_kafka.record_builder import NewRecord, build_batch

from ponor_cli.clients.kafka_client import error_name
from ponor_cli.errors import CommandError
from ponor_cli.records.leader_connections import LeaderConnections
from ponor_cli.records.partitioner import partition_of_key
from ponor_cli.records.record_text import TextRecord

BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 512 * 1024
TIMEOUT_MS: Final = 30_000
_NAMES_VERSION_MAX: Final = 12
"""From 13 on Produce names topics by id."""
_SEQUENCE_MASK: Final = 0x7FFF_FFFF


@dataclass(slots=True)
class WrittenRange:
    """What one run of the command wrote to one partition: offsets from the first to the last, others' records may lie between."""

    partition: int
    first_offset: int
    last_offset: int
    records: int


class TopicWriter:
    """Collects records and writes them; `flush` returns when they are durable."""

    def __init__(self, leaders: LeaderConnections, *, codec: Codec, partition: int | None) -> None:
        self._leaders = leaders
        self._codec = codec
        self._partition = partition
        self._waiting: dict[int, list[NewRecord]] = defaultdict(list)
        self._waiting_records = 0
        self._waiting_bytes = 0
        self._keyless = 0
        self._sequences: dict[int, int] = defaultdict(int)
        self.written: dict[int, WrittenRange] = {}
        if partition is not None:
            leaders.leader_of(partition)  # refuses one that is not there, before anything is read
        response = leaders.bootstrap.call(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=TIMEOUT_MS),
            InitProducerIdResponse,
        )
        if response.error_code != ErrorCode.NONE:
            raise CommandError(f"the broker gives no producer id: {error_name(response.error_code)}")
        self._producer = (response.producer_id, response.producer_epoch)

    def add(self, record: TextRecord) -> None:
        """Take a record; writes when a batch is full."""
        timestamp = time.time_ns() // 1_000_000 if record.timestamp_ms is None else record.timestamp_ms
        partition = self._choose(record)
        self._waiting[partition].append(NewRecord(timestamp, record.key, record.value, record.headers))
        self._waiting_records += 1
        self._waiting_bytes += len(record.key or b"") + len(record.value or b"") + 64
        if self._waiting_records >= BATCH_RECORDS_MAX or self._waiting_bytes >= BATCH_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what waits.

        Raises:
            CommandError: a batch was refused; earlier ones are written.
        """
        waiting, self._waiting = self._waiting, defaultdict(list)
        self._waiting_records = self._waiting_bytes = 0
        self._keyless += (
            1  # keyless records of one batch stay together, as the clients' sticky partitioner does
        )
        for partition, records in sorted(waiting.items()):
            self._write(partition, records)

    def _choose(self, record: TextRecord) -> int:
        if record.partition is not None:
            self._leaders.leader_of(record.partition)
            return record.partition
        if self._partition is not None:
            return self._partition
        partitions = self._leaders.partitions
        if record.key is not None:
            return partition_of_key(record.key, len(partitions))
        return partitions[self._keyless % len(partitions)]

    def _write(self, partition: int, records: list[NewRecord]) -> None:
        producer_id, producer_epoch = self._producer
        batch = build_batch(
            records,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self._sequences[partition],
        )
        data = PartitionProduceData(index=partition, records=memoryview(batch))
        topic = TopicProduceData(name=self._leaders.topic, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[topic])
        tries = 0
        while True:
            row = self._send(partition, request)
            if row.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                break
            tries += 1
            if not self._leaders.may_retry(row.error_code, tries):
                raise CommandError(_refusal(self._leaders.topic, partition, row))
        self._sequences[partition] = (self._sequences[partition] + len(records)) & _SEQUENCE_MASK
        self._note(partition, row.base_offset, len(records))

    def _send(self, partition: int, request: ProduceRequest) -> PartitionProduceResponse:
        leader = self._leaders.leader_of(partition)
        response = leader.call(request, ProduceResponse, version_max=_NAMES_VERSION_MAX)
        return response.responses[0].partition_responses[0]

    def _note(self, partition: int, base_offset: int, count: int) -> None:
        written = self.written.setdefault(partition, WrittenRange(partition, base_offset, base_offset, 0))
        written.last_offset = base_offset + count - 1
        written.records += count


def _refusal(topic: str, partition: int, row: PartitionProduceResponse) -> str:
    reasons = [f"record {each.batch_index}: {each.batch_index_error_message}" for each in row.record_errors]
    detail = "; ".join(filter(None, [row.error_message, *reasons]))
    return f"{topic}-{partition} refuses: {error_name(row.error_code)}{f' ({detail})' if detail else ''}"
