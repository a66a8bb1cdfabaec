"""Fast path of Produce: one uncompressed batch for one partition, appended without changes.

Handles the requests that `ponor_kafka.plain_produce` parses in two compiled steps.
`handlers.produce.produce`, which implements all rules and error answers, handles every other request (for
example for a topic with its own codec, with a timestamp out of bounds, or with a repeated batch).

Each request creates only one object, a `PlainPending`. This object also keeps the request's place in
the order of the connection's answers
(docs/design/kafka-protocol-and-produce-path.md#plain-requests).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import encode_response_frame
from ponor_kafka.plain_produce import read_plain_produce, walk_plain_batch
from ponor_kafka.record_batch import NO_PRODUCER_ID
from ponor_runtime.clock import Clock
from s3stream.errors import S3StreamError

from ponor_broker.handlers.produce.produce_answer import NO_TIMESTAMP, PartitionOutcome, ProduceAnswers
from ponor_broker.handlers.produce.produce_deadlines import NOT_IN_TIME, ProduceDeadlines
from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.state.producer_entry import ProducerBatch
from ponor_broker.requests.connection import PendingAnswer, Response
from ponor_broker.requests.dispatch import Measured

if TYPE_CHECKING:  # only the stub file defines this name, not the compiled module
    from ponor_kafka.plain_produce import PlainProduce


class PlainPending(PendingAnswer):
    """A plain request whose append is not durable yet."""

    __slots__ = (
        "_answers",
        "_measured",
        "base_offset",
        "correlation_id",
        "count",
        "index",
        "log_start_offset",
        "max_timestamp",
        "min_timestamp",
        "position",
        "producer",
        "received_ns",
        "size_bytes",
        "timeout_ms",
        "topic",
        "version",
    )

    base_offset: int
    log_start_offset: int
    max_timestamp: int
    min_timestamp: int

    def __init__(
        self, answers: ProduceAnswers, measured: Measured, plain: PlainProduce, received_ns: int
    ) -> None:
        self.connection = None
        self.is_answered = False
        self._answers = answers
        self._measured = measured
        self.received_ns = received_ns
        (
            self.version,
            self.correlation_id,
            self.timeout_ms,
            self.topic,
            self.index,
            self.position,
            self.size_bytes,
            self.count,
            producer_id,
            producer_epoch,
            base_sequence,
        ) = plain
        self.producer = (
            None
            if producer_id == NO_PRODUCER_ID
            else ProducerBatch(producer_id, producer_epoch, base_sequence, self.count)
        )

    def settled(self, error: BaseException | None) -> None:
        """Answer the request, because its append is durable or has failed."""
        if self.is_answered:
            return  # already answered with REQUEST_TIMED_OUT
        self._measured.answered(self.received_ns)
        if error is None:
            template = self._answers.template(self.version, self.topic)
            self.response = (
                template(
                    self.correlation_id, self.index, self.base_offset, NO_TIMESTAMP, self.log_start_offset
                ),
            )
        else:
            self.response = self._refusal(storage_error(error))
        self.is_answered = True
        if self.connection is not None:
            self.connection.answered(self)

    def expire(self) -> None:
        """Answer with REQUEST_TIMED_OUT. The batch stays in the log, as in Kafka."""
        self._measured.answered(self.received_ns)
        self.answer(self._refusal(PartitionError(ErrorCode.REQUEST_TIMED_OUT, NOT_IN_TIME)))

    def _refusal(self, error: PartitionError) -> Response:
        outcome = PartitionOutcome(self.topic, self.index)
        outcome.error = error
        listener = None if self.connection is None else self.connection.context.listener
        body = self._answers.body(self.version, [outcome], listener)
        return encode_response_frame(ApiKey.PRODUCE, self.version, self.correlation_id, body)


class PlainProduceHandler:
    """Fulfils `dispatch.PlainHandler`. Batches larger than `batch_bytes_max` (the setting
    `decompressed_batch_bytes_max`) take the general path, which enforces this limit.
    """

    def __init__(self, partitions: PartitionManager, clock: Clock, *, batch_bytes_max: int) -> None:
        self._partitions = partitions
        self._clock = clock
        self._batch_bytes_max = batch_bytes_max
        self._answers = ProduceAnswers(partitions.topics)
        self._deadlines = ProduceDeadlines(clock)

    def start(self, frame: bytearray, measured: Measured, received_ns: int) -> PlainPending | None:
        """Append the batch of a plain request; return None, without any effect, for every other request."""
        plain = read_plain_produce(frame)
        if plain is None:
            return None
        request = PlainPending(self._answers, measured, plain, received_ns)
        partition = self._partitions.get(request.topic, request.index)
        size_bytes = request.size_bytes
        if partition is None or size_bytes > partition.plain_bytes_max or size_bytes > self._batch_bytes_max:
            return None
        records = walk_plain_batch(frame, request.position, size_bytes)
        # Parked requests are being retried, and this request may have to wait behind them.
        if records is None or self._partitions.parking.is_calling:
            return None
        request.max_timestamp, request.min_timestamp, lacks_key = records
        config = partition.config
        now_ms = self._clock.wall_ms()
        if (
            (lacks_key and config.is_compacted)
            # This also excludes the timestamp -1, which means "no timestamp".
            or request.min_timestamp < now_ms - config.timestamp_before_ms_max
            or request.max_timestamp > now_ms + config.timestamp_after_ms_max
        ):
            return None
        try:
            base_offset = partition.append_plain(frame, request, now_ms)
        except (PartitionError, S3StreamError) as error:
            request.settled(error)
            return request
        if base_offset is None:
            return None
        request.base_offset = base_offset
        request.log_start_offset = partition.log_start_offset
        self._deadlines.add(request, request.timeout_ms)
        return request
