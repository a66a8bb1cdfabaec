"""Write records to one topic with aiokafka's idempotent producer: a repeated request writes nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.structs import RecordMetadata

from ponor_cli.errors import CommandError
from ponor_cli.records.client_library import (
    CLIENT_ID,
    LastWarning,
    check_partition,
    describe_error,
    ignore_unretrieved,
    partitions_of,
    quiet_library,
    stop_client,
)
from ponor_cli.records.text import TextRecord

BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 512 * 1024
RECORD_OVERHEAD_BYTES: Final = 64
REQUEST_BYTES_MAX: Final = 100 * 1024 * 1024
"""Larger than any `max.message.bytes`: the broker's limit decides, and the broker's error names it."""
REQUEST_TIMEOUT_MS: Final = 30_000
DELIVERY_S_MAX: Final = 60.0
"""Timeout of one batch: by default aiokafka's idempotent producer repeats a request forever."""


@dataclass(slots=True)
class WrittenRange:
    """First and last offset that one run wrote to a partition. Records of other producers may lie between
    them.
    """

    partition: int
    first_offset: int
    last_offset: int
    records: int


@contextmanager
def open_producer(
    bootstrap: str, topic: str, *, compression: str, partition: int | None
) -> Iterator[TopicProducer]:
    """Connect a producer for one topic.

    `compression` is none, gzip, snappy, lz4 or zstd. `partition` is for records without a
    partition; if `partition` is None, the key decides.

    Raises:
        CommandError: no broker answers, or the topic or partition does not exist.
    """
    partitions = partitions_of(bootstrap, topic)
    if partition is not None:
        check_partition(topic, partitions, partition)
    with quiet_library() as warning, asyncio.Runner() as runner:
        producer = runner.run(_start(bootstrap, compression, warning))
        try:
            yield TopicProducer(runner, producer, topic, partitions, partition, warning)
        finally:
            runner.run(stop_client(producer.stop()))


class TopicProducer:
    """Collects records and writes them in batches; `flush` returns when they are durable.

    The event loop runs only during `add` and `flush`. Between them the caller blocks on standard
    input, where Ctrl-C interrupts it at once.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        producer: AIOKafkaProducer,
        topic: str,
        partitions: list[int],
        partition: int | None,
        warning: LastWarning,
    ) -> None:
        self._runner = runner
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._partition = partition
        self._warning = warning
        self._partition_of_key = DefaultPartitioner()
        self._waiting: list[tuple[int, TextRecord]] = []
        self._waiting_bytes = 0
        self._batches = 0
        self.written: dict[int, WrittenRange] = {}

    def add(self, record: TextRecord) -> None:
        """Add a record with a key or a value, and write the batch if it is full.

        Raises:
            CommandError: the topic has no such partition, or the batch was refused; earlier batches
                are written.
        """
        # aiokafka refuses a record that has neither.
        assert record.key is not None or record.value is not None, "a record needs a key or a value"
        self._waiting.append((self._choose(record), record))
        self._waiting_bytes += len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
        if len(self._waiting) >= BATCH_RECORDS_MAX or self._waiting_bytes >= BATCH_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the records that were added.

        Raises:
            CommandError: a batch was refused or not acknowledged in time; earlier ones are written.
        """
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._batches += 1
        if waiting:
            self._runner.run(self._write(waiting))

    def _choose(self, record: TextRecord) -> int:
        if record.partition is not None:
            check_partition(self._topic, self._partitions, record.partition)
            return record.partition
        if self._partition is not None:
            return self._partition
        if record.key is not None:
            chosen: int = self._partition_of_key(record.key, self._partitions, self._partitions)
            return chosen
        # Records without a key stay together by batch, as with the sticky partitioner of Kafka's own clients.
        return self._partitions[self._batches % len(self._partitions)]

    async def _write(self, records: list[tuple[int, TextRecord]]) -> None:
        sent: list[tuple[int, asyncio.Future[RecordMetadata]]] = []
        try:
            async with asyncio.timeout(DELIVERY_S_MAX):
                for partition, record in records:
                    sent.append((partition, await self._send(partition, record)))
                await asyncio.wait([future for _, future in sent])
        except TimeoutError as error:
            raise CommandError(
                f"{self._topic}: no acknowledgement within {DELIVERY_S_MAX:.0f} s, so the last"
                f" records may or may not be written; `ponor partition list {self._topic}` shows the"
                f" leaders{self._warning.text}"
            ) from error
        except KafkaError as error:
            raise CommandError(f"{self._topic}: {describe_error(error)}") from error
        finally:
            refused = self._note(sent)
        if refused is not None:
            raise CommandError(refused)

    async def _send(self, partition: int, record: TextRecord) -> asyncio.Future[RecordMetadata]:
        if partition not in await self._producer.partitions_for(self._topic):
            raise CommandError(
                f"topic {self._topic} has no partition {partition} any more; was it deleted and created"
                " again?"
            )
        sending: asyncio.Future[RecordMetadata] = await self._producer.send(
            self._topic,
            record.value,
            record.key,
            partition=partition,
            timestamp_ms=record.timestamp_ms,
            headers=record.headers,
        )
        return sending

    def _note(self, sent: list[tuple[int, asyncio.Future[RecordMetadata]]]) -> str | None:
        """Note the acknowledged offsets. Returns the first refusal."""
        refusal: str | None = None
        for partition, future in sent:
            if not future.done() or future.cancelled():
                continue
            error = future.exception()
            if error is None:
                self._note_offset(partition, future.result().offset)
            elif refusal is None:
                refusal = self._describe_failure(partition, error)
        return refusal

    def _describe_failure(self, partition: int, error: BaseException) -> str:
        if getattr(error, "retriable", False):  # aiokafka gave up; an earlier attempt may have succeeded
            return (
                f"{self._topic}-{partition}: no acknowledgement, so the last records may or may not be"
                f" written: {describe_error(error)}{self._warning.text}"
            )
        return f"{self._topic}-{partition}: the records were refused: {describe_error(error)}"

    def _note_offset(self, partition: int, offset: int) -> None:
        written = self.written.setdefault(partition, WrittenRange(partition, offset, offset, 0))
        written.last_offset = max(written.last_offset, offset)
        written.records += 1


async def _start(bootstrap: str, compression: str, warning: LastWarning) -> AIOKafkaProducer:
    ignore_unretrieved()
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        client_id=CLIENT_ID,
        compression_type=None if compression == "none" else compression,
        enable_idempotence=True,
        max_batch_size=BATCH_BYTES_MAX,
        max_request_size=REQUEST_BYTES_MAX,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
    )
    try:
        async with asyncio.timeout(DELIVERY_S_MAX):
            await producer.start()
    except (TimeoutError, KafkaError) as error:
        await stop_client(producer.stop())
        raise CommandError(
            f"no broker at {bootstrap} returned a producer id: {describe_error(error)}{warning.text}"
        ) from error
    return producer
