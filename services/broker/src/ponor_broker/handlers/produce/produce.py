"""General path of Produce: from a request's bytes to appends, and from their durability to the answer.

The request is parsed without creating an object per record. Each partition's batch is validated and appended
in one step, so that a connection's pipelined requests are appended in order. The first batch of a transaction
waits for the coordinator (`verified_batches`), and later ones of its producer wait behind it.

The answer is sent when all batches are durable, or contains REQUEST_TIMED_OUT for those that are not durable
in time. A batch for a partition in transit waits for a bounded time; the request's other partitions do not.
acks=1 and acks=-1 are equivalent: a partition has one log, and nothing is acknowledged before it is durable
there.

A request creates no future and no task (docs/design/kafka-protocol-and-produce-path.md#produce-path).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import RequestHeader
from ponor_kafka.produce_walk import (
    TOPIC_ID_MIN,
    VERSION_MAX,
    VERSION_MIN,
    ProduceWalk,
    walk_one_partition,
    walk_produce,
)
from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.tracing import Span
from s3stream.errors import S3StreamError

from ponor_broker.handlers.produce.produce_answer import PartitionOutcome, ProduceAnswers
from ponor_broker.handlers.produce.produce_deadlines import NOT_IN_TIME, ProduceDeadlines
from ponor_broker.handlers.produce.verified_batches import (
    NO_ID,
    UnverifiedError,
    VerifiedBatches,
    apart,
    is_transactional,
    refusal_of_transaction,
)
from ponor_broker.partitions.batch_validation import BatchValidator, RequestShare
from ponor_broker.partitions.errors import (
    BrokerFencedError,
    NotOneBatchError,
    PartitionError,
    PartitionInTransitError,
    storage_error,
)
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.state.durable_state import producer_of
from ponor_broker.partitions.transactions.verification import Verification
from ponor_broker.requests.api_handler import WhenFenced
from ponor_broker.requests.connection import Answer, CloseConnectionError, PendingAnswer, Response
from ponor_broker.requests.dispatch import Reply
from ponor_broker.requests.request_tracing import partition_attributes

ACKS_NONE: Final = 0
ACKS: Final = (-1, 0, 1)
MOMENTARY: Final = (PartitionInTransitError, BrokerFencedError, UnverifiedError, S3StreamError)
"""Refusals after which this broker may soon accept the same batch."""
ERRORS_WITH_LOG_START: Final = frozenset(
    {
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    }
)
"""Errors of a partition for which Kafka's answer contains the log start offset."""


class ProducePending(PendingAnswer):
    """A request whose appends are not all durable yet."""

    __slots__ = ("_answers", "_left", "_reply", "outcomes", "received_ns", "share", "transactional_id")

    def __init__(self, answers: ProduceAnswers, reply: Reply, partitions: int) -> None:
        self.connection = None
        self.is_answered = False
        self._answers = answers
        self._reply = reply
        self._left = partitions + 1  # plus one until the handler has appended all batches
        self.received_ns = reply.received_ns
        self.transactional_id: str | None = None
        self.outcomes: list[WaitingOutcome] = []
        self.share = RequestShare() if partitions > 1 else None
        """Shared by the batches of the request during validation; None for a single batch."""

    def settle_one(self) -> bool:
        """Record that a partition, or the handler, is done; return whether nothing else is pending."""
        self._left -= 1
        return self._left == 0

    def wait_for_one_more(self) -> None:
        """Add a pending part, which ends with `settle_one`."""
        self._left += 1

    def respond(self) -> Response:
        """Return the response frame and count the request as answered. Called once."""
        outcomes = self.drop_outcomes()
        if len(outcomes) == 1 and outcomes[0].error is None:
            self._reply.note()
            return (self._answers.one_success(self._reply.header, outcomes[0]),)
        reply = self._reply
        return reply(self._answers.body(reply.header.api_version, outcomes, reply.connection.listener))

    def complete(self) -> None:
        """Answer the request, unless its own refusal has closed the connection."""
        response = self.respond()
        if not self.is_answered:
            self.answer(response)

    def drop_outcomes(self) -> list[WaitingOutcome]:
        """Return the outcomes and drop the reference to them: they refer back to this object, and a
        reference cycle per request would load the garbage collector (measured: 12 % of the CPU).
        """
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def expire(self) -> None:
        """Answer with REQUEST_TIMED_OUT. The batches stay in the log, as in Kafka: a client that sends them
        again without idempotence duplicates them.
        """
        for outcome in self.outcomes:
            if not outcome.is_settled:
                outcome.is_settled = True
                outcome.error = PartitionError(ErrorCode.REQUEST_TIMED_OUT, NOT_IN_TIME)
        self.complete()

    def abandon(self) -> None:
        """End the request, because its client has disconnected. A batch of it may still wait, and is not
        appended then.
        """
        PendingAnswer.abandon(self)
        if self.is_answered:
            return
        # The queue of deadlines would keep the request until its timeout, which may be 24 days.
        self.is_answered = True
        self.transactional_id = None
        for outcome in self.drop_outcomes():
            outcome.is_settled = True
        self._reply.note()


class SilentPending(ProducePending):
    """A request with acks=0. It takes a slot in the connection's answer order only while it waits for a
    partition in transit, or for the coordinator of its transaction.
    """

    __slots__ = ("waits",)

    def __init__(self, answers: ProduceAnswers, reply: Reply, partitions: int) -> None:
        ProducePending.__init__(self, answers, reply, partitions)
        self.waits = False

    def respond(self) -> Response:
        """Return no answer; a refusal closes the connection, because the client gets no other signal."""
        connection = self.connection
        try:
            _close_on_refusal(self.drop_outcomes())
        except CloseConnectionError as refusal:
            if connection is not None:
                connection.failed(refusal)
        self._reply.note()
        return None


class WaitingOutcome(PartitionOutcome):
    """The outcome of one partition, which its append completes."""

    __slots__ = ("is_settled", "request")

    def __init__(self, topic: str | bytes, index: int, request: ProducePending) -> None:
        PartitionOutcome.__init__(self, topic, index)
        self.request = request
        self.is_settled = False

    def settled(self, error: BaseException | None) -> None:
        """Complete the outcome, because the append is durable or has failed."""
        if self.is_settled:
            return  # already answered with REQUEST_TIMED_OUT, or the client has disconnected
        self.is_settled = True
        if error is not None:
            # Its traceback would keep the frame of the request while other batches of it wait.
            self.error = storage_error(error).with_traceback(None)
        request = self.request
        if request.settle_one():
            request.complete()


class ProduceHandler:
    """Fulfils `dispatch.RawHandler`."""

    version_min = VERSION_MIN
    version_max = VERSION_MAX
    when_fenced = WhenFenced.SETTLES

    def __init__(
        self,
        partitions: PartitionManager,
        validator: BatchValidator,
        transactional: VerifiedBatches,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._partitions = partitions
        self._validator = validator
        self._transactional = transactional
        self._clock = clock
        self._telemetry = telemetry
        self._answers = ProduceAnswers(partitions.topics)
        self._deadlines = ProduceDeadlines(clock)

    def start(self, frame: bytearray, header: RequestHeader, reply: Reply) -> Answer:
        """Validate and append all batches.

        Raises:
            KafkaWireError: malformed; nothing was appended.
            CloseConnectionError: acks=0 and a batch was refused: closing is the only signal to the client.
        """
        version = header.api_version
        # A waiting batch keeps the header in memory, and no bound counts the client id (up to 131 KB).
        header.client_id = None
        one = walk_one_partition(version, frame, header.body_position)
        if one is not None and one.acks in ACKS:
            request = self._pending(reply, 1, one.acks)
            if is_transactional(one.records):
                _refuse(request, one.topic, one.partition, NO_ID)
            else:
                self._append(request, one.topic, one.partition, one.records, version, self._clock.wall_ms())
            return self._await_durability(request, one.timeout_ms, reply)
        walk, _ = walk_produce(version, memoryview(frame), header.body_position)
        request = self._pending(reply, len(walk.partitions), walk.acks)
        request.transactional_id = walk.transactional_id
        refusal = _refusal_of_all(walk)
        now_ms = self._clock.wall_ms()
        for name, topic_id, index, records in walk.partitions:
            topic = topic_id if version >= TOPIC_ID_MIN else name
            if refusal is None:
                self._append(request, topic, index, records, version, now_ms)
            else:
                _refuse(request, topic, index, refusal)
        return self._await_durability(request, walk.timeout_ms, reply)

    def _pending(self, reply: Reply, partitions: int, acks: int) -> ProducePending:
        kind = SilentPending if acks == ACKS_NONE else ProducePending
        return kind(self._answers, reply, partitions)

    def _append(
        self,
        request: ProducePending,
        topic: str | bytes,
        index: int,
        records: memoryview | None,
        version: int,
        now_ms: int,
    ) -> None:
        outcome = WaitingOutcome(topic, index, request)
        request.outcomes.append(outcome)
        try:
            self._try(outcome, records, version, now_ms)
        except PartitionInTransitError as transit:
            self._park(outcome, records, version, transit)

    def _park(
        self,
        outcome: WaitingOutcome,
        records: memoryview | None,
        version: int,
        transit: PartitionInTransitError,
    ) -> None:
        """Let a batch wait for its partition, or refuse it."""
        request = outcome.request
        records = None if records is None else apart(records)
        again = partial(self._try_again, outcome, records, version, self._telemetry.request)
        size_bytes = 0 if records is None else len(records)
        is_silent = isinstance(request, SilentPending)
        if self._partitions.parking.park(transit.key, again, size_bytes, is_silent=is_silent) is None:
            self._refuse(outcome, records, transit)
        elif isinstance(request, SilentPending):
            request.waits = True

    def _refuse(
        self, outcome: WaitingOutcome, records: memoryview | None, error: PartitionError | S3StreamError
    ) -> None:
        """Complete the outcome with an error. If the same broker may accept the batch soon, note
        its producer, so that later batches do not overtake it.
        """
        if isinstance(error, MOMENTARY):
            self._note_refusal(outcome, records)
        outcome.settled(error)

    def _note_refusal(self, outcome: WaitingOutcome, records: memoryview | None) -> None:
        producer = producer_of(records)
        if producer is not None:
            self._partitions.note_refusal(outcome.topic, outcome.index, producer)

    def _await_coordinator(
        self,
        partition: Partition,
        outcome: WaitingOutcome,
        records: memoryview | None,
        version: int,
        proof: Verification | None,
    ) -> bool:
        """Let a batch of a transactional producer wait for the coordinator if necessary."""
        request, span = outcome.request, self._telemetry.request
        if request.transactional_id is None:
            return False

        def settled(batch: memoryview, error: PartitionError | None, found: Verification | None) -> None:
            if error is None:
                self._try_again(outcome, batch, version, span, is_parked=False, proof=found)
            else:
                self._refuse(outcome, batch, error)

        waits = self._transactional.wait_for(
            partition, request.transactional_id, records, version, proof, settled
        )
        if waits and isinstance(request, SilentPending):
            request.waits = True
        return waits

    def _try_again(
        self,
        outcome: WaitingOutcome,
        records: memoryview | None,
        version: int,
        span: Span | None,
        *,
        is_parked: bool = True,
        proof: Verification | None = None,
    ) -> None:
        """Retry a batch that waited: its partition serves again, its transaction is verified (`proof`), or
        the wait has ended. `span` is this request's span; the current span belongs to another request.
        """
        request = outcome.request
        if outcome.is_settled or request.connection is None:
            # The request timed out, or the client disconnected, so the producer may send this batch again.
            # Until then, neither this batch nor later batches of the producer may be appended.
            self._note_refusal(outcome, records)
            return
        # keep the request open: `append` may settle a repeated batch before it returns the offset
        request.wait_for_one_more()
        share = request.share = request.share or RequestShare()
        before_bytes = share.decompressed_bytes
        running, self._telemetry.request = self._telemetry.request, span
        try:
            self._try(outcome, records, version, self._clock.wall_ms(), has_waited=True, proof=proof)
        except PartitionInTransitError as transit:
            # A verified batch must not park behind later ones of its producer, which are being retried.
            if is_parked or self._partitions.parking.holds_back(transit.key):
                self._refuse(outcome, records, transit)
            else:
                self._park(outcome, records, version, transit)
        finally:
            self._telemetry.request = running
        self._partitions.parking.took(share.decompressed_bytes - before_bytes)
        if request.settle_one():
            request.complete()

    def _try(
        self,
        outcome: WaitingOutcome,
        records: memoryview | None,
        version: int,
        now_ms: int,
        *,
        has_waited: bool = False,
        proof: Verification | None = None,
    ) -> None:
        """Append the batch, let it wait for its transaction's coordinator, or complete the outcome with an
        error.

        Raises:
            PartitionInTransitError: nothing was appended, and the outcome is open.
        """
        partition: Partition | None = None
        try:
            partition = self._find(outcome, records)
            # Parked batches of the same producer came after a batch that waited for the coordinator.
            if not has_waited and self._partitions.parking.holds_back(partition.identity.key):
                raise PartitionInTransitError(
                    partition.identity.key,
                    f"requests that waited for {partition.identity} must be processed first",
                )
            if partition.is_internal:
                # The group coordinator could not decode a client's records. Kafka exempts one client
                # id, which any client could use.
                raise PartitionError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"{partition.identity.topic} is internal: only brokers write to it",
                )
            if self._await_coordinator(partition, outcome, records, version, proof):
                return
            self._append_now(partition, records, version, now_ms, outcome, proof)
        except PartitionInTransitError:
            raise
        except (PartitionError, S3StreamError) as error:
            if partition is not None and _has_log_start(error):
                outcome.log_start_offset = partition.log_start_offset
            self._refuse(outcome, records, error)
        else:
            outcome.log_start_offset = partition.log_start_offset
            if partition.config.is_log_append_time:
                outcome.log_append_time_ms = now_ms

    def _find(self, outcome: WaitingOutcome, records: memoryview | None) -> Partition:
        """As `PartitionManager.find`, but also return a partition that is moving if earlier batches of the
        producer wait for the coordinator: this batch must wait, and perhaps park, behind them.
        """
        try:
            return self._partitions.find(outcome.topic, outcome.index)
        except PartitionInTransitError:
            partition = self._partitions.get(outcome.topic, outcome.index)
            if partition is None or not self._transactional.is_waiting(partition, records):
                raise
            return partition

    def _append_now(
        self,
        partition: Partition,
        records: memoryview | None,
        version: int,
        now_ms: int,
        outcome: WaitingOutcome,
        proof: Verification | None,
    ) -> None:
        """Validate and append a batch; a traced request gets a span for each step."""
        span = self._telemetry.request
        if span is None:
            batch, min_timestamp = self._validator.validate(
                records, version, partition.config, now_ms, outcome.request.share
            )
            outcome.base_offset = partition.append(
                batch, now_ms, outcome.settled, min_timestamp=min_timestamp, verification=proof
            )
            return
        began_ns = self._clock.monotonic_ns()
        batch, min_timestamp = self._validator.validate(
            records, version, partition.config, now_ms, outcome.request.share
        )
        validated_ns = self._clock.monotonic_ns()
        outcome.base_offset = partition.append(
            batch, now_ms, outcome.settled, min_timestamp=min_timestamp, verification=proof
        )
        identity = partition.identity
        about = partition_attributes(
            identity.topic, identity.index, outcome.base_offset, batch.record_count, len(records or b"")
        )
        span.step("ponor.produce.validate", began_ns, about, ended_ns=validated_ns)
        span.step("ponor.produce.append", validated_ns, about)

    def _await_durability(self, request: ProducePending, timeout_ms: int, reply: Reply) -> Answer:
        if isinstance(request, SilentPending):
            if request.waits and not request.settle_one():
                return request  # completed when the waiting batch is retried, after a bounded wait
            _close_on_refusal(request.drop_outcomes())
            reply.note()
            return None
        if request.settle_one():
            return request.respond()  # all batches were refused, or repeat durable batches
        self._deadlines.add(request, timeout_ms)
        return request


def _refuse(request: ProducePending, topic: str | bytes, index: int, refusal: PartitionError) -> None:
    outcome = WaitingOutcome(topic, index, request)
    request.outcomes.append(outcome)
    outcome.settled(refusal)


def _has_log_start(error: Exception) -> bool:
    if not isinstance(error, PartitionError) or isinstance(error, NotOneBatchError):
        return False
    return error.code in ERRORS_WITH_LOG_START


def _refusal_of_all(walk: ProduceWalk) -> PartitionError | None:
    if walk.acks not in ACKS:
        return PartitionError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {walk.acks}")
    return refusal_of_transaction(walk)


def _close_on_refusal(outcomes: Iterable[PartitionOutcome]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise CloseConnectionError(f"a Produce request with acks=0 was refused: {outcome.error}")
