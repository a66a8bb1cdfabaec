"""Requests of partition leaders to transaction coordinators (KIP-890). A coordinator verifies that the
partition belongs to a producer's transaction, or adds the partition to the transaction.

Batches of one producer for one partition wait in order for one answer (`_Question`). Questions to one
coordinator share requests; one request per broker is in flight. Before each request, the verifier takes a
proof from the partition. An answer counts only if this proof is not void when the answer arrives. Otherwise
the answer may concern a transaction that has ended meanwhile, and the verifier sends the question again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, partial
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ponor_kafka.errors import ErrorCode, error_of
from ponor_kafka.internal_topics import TRANSACTIONS_TOPIC
from ponor_kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.turns import TurnBudget, turn

from ponor_broker.coordination.partitioning import partition_for
from ponor_broker.coordination.retries import Retries
from ponor_broker.peers.connection_pool import PeerConnections, PeerUnavailableError
from ponor_broker.peers.request_port import RequestPort, UnansweredError
from ponor_broker.transactions.verification_errors import TransactionalWrite, error_for

VERSION: Final = 5
QUESTIONS_PER_REQUEST_MAX: Final = 1_000
REQUEST_BYTES_MAX: Final = 1 << 20
"""A request gets no more questions above this size. A transactional id may have 32 KiB, and a frame to
another broker has at most 4 MiB: a larger one would stop this broker."""
QUESTION_BYTES: Final = 40
"""Size of a question in a request without its names, rounded up."""
SETTLED_PER_TURN_MAX: Final = 128
SETTLED_TURN_NS_MAX: Final = 4_000_000
"""A turn of the event loop appends batches until one of these bounds: a compressed batch of 2 KB may take
100 ms."""
BATCHES_PER_QUESTION_MAX: Final = 256
"""Waiting batches of one producer for one partition. They are refused together, in one turn of the event
loop; idempotent clients send at most five."""
BATCH_BYTES: Final = 512
"""Counted for a waiting batch in addition to its bytes and its transactional id."""
CHAR_BYTES_MAX: Final = 4
"""Largest memory of a character of a transactional id."""
NO_LEADER: Final = -1
PAUSE_PER_WAITED: Final = 2
"""Ratio of two times: the pause before a request to add a partition is repeated / how long its batches have
waited."""
_SWEEP_S: Final = 1.0

TopicPartition: TypeAlias = tuple[str, int]
AskLocal: TypeAlias = Callable[[AddPartitionsToTxnRequest], Awaitable[AddPartitionsToTxnResponse]]


class Proof(Protocol):
    """A partition's proof object, taken before the request to the coordinator. The first append of the
    transaction needs it and is refused if it is void.
    """

    @property
    def is_void(self) -> bool:
        """Whether the partition has appended a marker of the producer since the proof was taken."""
        ...


P = TypeVar("P", bound=Proof)


class Coordinators(Protocol):
    """Partitions of `__transaction_state`, from the image."""

    def partition_count(self, name: str) -> int | None:
        """Return the number of partitions; None if the topic does not exist."""
        ...

    def leader_id(self, topic: str, index: int) -> int | None:
        """Return the node id of a partition's leader; −1 if it has none now; None if there is no such
        partition.
        """
        ...


class Claim(NamedTuple):
    """The transaction that a batch claims to belong to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class WaitingBatch(NamedTuple, Generic[P]):
    """A batch whose partition has no open transaction of its producer.

    Attributes:
        write: kind of the client's request.
        size_bytes: memory of the batch.
        take_proof: returns the proof for the next request to the coordinator; None if the transaction is open
            in the partition now, so that no request is needed.
        may_wait: returns whether the batch may be settled in a later turn than the batch before it. If the
            partition moves, that batch may wait in `TransitParking`, and this one must wait behind it there.
        settled: called once, on the event-loop thread, in the order of the batches of one producer for one
            partition. NONE: append the batch now, with the proof. Other errors: see `verification_errors`.
            Must not raise.
    """

    write: TransactionalWrite
    size_bytes: int
    take_proof: Callable[[], P | None]
    may_wait: Callable[[], bool]
    settled: Callable[[ErrorCode, P | None], None]


class TransactionVerifier(Generic[P]):
    """Sends the questions of all partitions of this broker, and settles their batches."""

    def __init__(
        self,
        peers: PeerConnections,
        coordinators: Coordinators,
        local: AskLocal,
        runtime: Runtime,
        *,
        node_id: int,
        bytes_max: int,
        wait_ms_max: int,
        retry_backoff_ms: int,
        retry_ms_max: int,
    ) -> None:
        """Create a verifier.

        Args:
            peers: connections to other brokers.
            coordinators: the current image.
            local: the coordinator of this broker.
            runtime: clock.
            node_id: id of this broker.
            bytes_max: memory of the batches that wait; further ones are refused.
            wait_ms_max: a batch that has waited this long is refused.
            retry_backoff_ms: Kafka's add.partitions.to.txn.retry.backoff.ms.
            retry_ms_max: Kafka's add.partitions.to.txn.retry.backoff.max.ms: how long the verifier repeats a
                question while the previous transaction is not complete.
        """
        self._coordinators = coordinators
        self._clock = runtime.clock
        self._bytes_max = bytes_max
        self._wait_ns_max = wait_ms_max * 1_000_000
        self._retry_backoff_s = retry_backoff_ms / 1_000
        self._retry_ns_max = retry_ms_max * 1_000_000
        self._port = RequestPort(
            peers, local, node_id=node_id, version=VERSION, answer=AddPartitionsToTxnResponse
        )
        self._tasks = BackgroundTasks(runtime.fail_stop)
        self._retries: Retries[_Question[P]] = Retries(runtime)
        self._lanes: dict[int, _Lane[P]] = {}
        self._open: dict[TopicPartition, dict[int, _Question[P]]] = {}
        # An ordered dictionary finds its first key in constant time after any number of removals; a plain one
        # does not, and 100,000 questions may be refused together.
        self._by_age: OrderedDict[_Question[P], None] = OrderedDict()
        self._held_bytes = 0
        self._turn = TurnBudget(
            runtime.clock, count_max=SETTLED_PER_TURN_MAX, duration_ns_max=SETTLED_TURN_NS_MAX
        )
        telemetry = runtime.telemetry
        self._requests = telemetry.counter("ponor_transaction_verification_requests_total")
        self._results = {
            is_accepted: telemetry.counter(
                "ponor_transaction_verifications_total", result="accepted" if is_accepted else "refused"
            )
            for is_accepted in (True, False)
        }
        self._waits = telemetry.histogram("ponor_transaction_verification_seconds")
        telemetry.gauge("ponor_transaction_verifications_waiting", lambda: len(self._by_age))

    def start(self) -> None:
        """Start the tasks that send questions and refuse overdue batches."""
        self._tasks.spawn(self._route_due(), "transactions to verify")
        self._tasks.spawn(self._sweep(), "overdue verifications")

    async def close(self) -> None:
        """Refuse every waiting batch."""
        await self._refuse_in_turns(list(self._by_age), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await self._tasks.close()
        for question in list(self._by_age):
            self._settle(question, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def is_waiting(self, where: TopicPartition, producer_id: int) -> bool:
        """Return whether batches of a producer wait: later ones must wait behind them."""
        return producer_id in self._open.get(where, {})

    def submit(self, where: TopicPartition, claim: Claim, batch: WaitingBatch[P]) -> None:
        """Let a batch wait for the coordinator. `settled` may be called before this method returns."""
        size_bytes = _held_bytes(batch, claim)
        if self._tasks.is_closed or (self._held_bytes and self._held_bytes + size_bytes > self._bytes_max):
            batch.settled(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
            return
        question = self._open.get(where, {}).get(claim.producer_id)
        if question is not None and claim.producer_epoch > question.claim.producer_epoch:
            self._settle(question, ErrorCode.INVALID_PRODUCER_EPOCH)
            question = None
        if question is None:
            question = self._ask(where, claim, batch.write)
        elif claim.producer_epoch < question.claim.producer_epoch:
            batch.settled(ErrorCode.INVALID_PRODUCER_EPOCH, None)
            return
        elif (claim, batch.write) != (question.claim, question.write):
            # The transactional id or the kind of write differs from that of the waiting batches: the producer
            # must retry.
            batch.settled(ErrorCode.NETWORK_EXCEPTION, None)
            return
        elif len(question.batches) >= BATCHES_PER_QUESTION_MAX:
            batch.settled(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
            return
        self._held_bytes += size_bytes
        question.batches.append(batch)

    def refuse(self, where: TopicPartition, error: ErrorCode) -> None:
        """Refuse the waiting batches of a partition that closes, in turns of the event loop."""
        questions = list(self._open.get(where, {}).values())
        for question in questions:
            question.refusal = error
        if questions and not self._tasks.is_closed:
            self._tasks.spawn(self._refuse_in_turns(questions, error), f"refusals of {where[0]}-{where[1]}")

    def _ask(self, where: TopicPartition, claim: Claim, write: TransactionalWrite) -> _Question[P]:
        question: _Question[P] = _Question(where, claim, write, self._clock.monotonic_ns())
        self._open.setdefault(where, {})[claim.producer_id] = question
        self._by_age[question] = None
        self._retries.add_now(question)
        return question

    async def _route_due(self) -> None:
        while True:
            await self._retries.wait()
            await self._turn.wait()  # in order, so that settled batches cannot delay new questions for long
            # Cached per turn: questions of one transaction arrive together, and the image does not change.
            coordinator = cache(self._coordinator)
            for question in self._retries.take(QUESTIONS_PER_REQUEST_MAX):
                if question.is_settled:
                    continue
                if self._turn.is_spent:
                    self._retries.add_now(question)
                elif question.is_rest and question.batches[0].take_proof() is None:
                    self._settle(question, ErrorCode.NONE)
                else:
                    self._route(question, coordinator(question.claim.transactional_id))
            await turn()

    def _route(self, question: _Question[P], node_id: int | None) -> None:
        """Put a question into the queue of its coordinator."""
        if node_id is None:
            self._settle(question, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            if node_id not in self._lanes:
                self._lanes[node_id] = OrderedDict()
                self._tasks.spawn(self._serve(node_id), f"verifications at broker {node_id}")
            question.lane = self._lanes[node_id]
            question.lane[question] = None

    def _coordinator(self, transactional_id: str) -> int | None:
        count = self._coordinators.partition_count(TRANSACTIONS_TOPIC)
        if not count:
            return None
        leader_id = self._coordinators.leader_id(TRANSACTIONS_TOPIC, partition_for(transactional_id, count))
        return None if leader_id == NO_LEADER else leader_id

    async def _serve(self, node_id: int) -> None:
        """Send one request after the other until the queue is empty."""
        queue = self._lanes[node_id]
        while queue:
            asked: dict[_Question[P], P] = {}
            await self._turn.wait()
            try:
                answer = await self._port.ask(node_id, partial(self._build, queue, asked))
            except PeerUnavailableError:
                unasked = list(queue)
                queue.clear()
                await self._refuse_in_turns(unasked, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            except UnansweredError:
                await self._refuse_in_turns(asked, ErrorCode.NETWORK_EXCEPTION)
            else:
                if answer is not None:
                    await self._note(asked, answer)
            await turn()
        del self._lanes[node_id]

    def _build(self, queue: _Lane[P], asked: dict[_Question[P], P]) -> AddPartitionsToTxnRequest | None:
        """Return the next request, and put its questions with their proofs into `asked`."""
        rows: dict[str, tuple[_Question[P], dict[str, list[int]]]] = {}
        later: list[_Question[P]] = []
        size_bytes = 0
        for _ in range(min(len(queue), QUESTIONS_PER_REQUEST_MAX)):
            if not queue or self._turn.is_spent or size_bytes >= REQUEST_BYTES_MAX:
                break
            question, _ = queue.popitem(last=False)
            if question.is_settled:
                continue
            first, topics = rows.get(question.claim.transactional_id, (question, {}))
            if (first.claim, first.is_adding) != (question.claim, question.is_adding):
                later.append(question)  # a request has one row per transactional id
                continue
            proof = question.batches[0].take_proof()
            if proof is None:
                self._settle(question, ErrorCode.NONE)
                continue
            asked[question] = proof
            size_bytes += question.size_bytes
            rows[question.claim.transactional_id] = first, topics
            topic, index = question.where
            topics.setdefault(topic, []).append(index)
        for question in reversed(later):
            queue[question] = None
            queue.move_to_end(question, last=False)
        self._requests.add(bool(rows))
        return (
            AddPartitionsToTxnRequest([first.row(topics) for first, topics in rows.values()])
            if rows
            else None
        )

    async def _note(self, asked: dict[_Question[P], P], answer: AddPartitionsToTxnResponse) -> None:
        codes = {
            (row.transactional_id, (topic.name, partition.partition_index)): partition.partition_error_code
            for row in answer.results_by_transaction
            for topic in row.topic_results
            for partition in topic.results_by_partition
        }
        for question, proof in asked.items():
            missing = ErrorCode.NETWORK_EXCEPTION
            code = answer.error_code or codes.get((question.claim.transactional_id, question.where), missing)
            await self._turn.wait()
            self._answered(question, error_of(code), proof)

    def _answered(self, question: _Question[P], error: ErrorCode, proof: P) -> None:
        if question.is_settled:
            return
        waited_ns = self._clock.monotonic_ns() - question.since_ns
        if (error is ErrorCode.NONE and proof.is_void) or error is ErrorCode.OPERATION_NOT_ATTEMPTED:
            # Not attempted: the coordinator refused another partition of the same row. The question of that
            # partition is settled, so the next row does not contain it.
            self._retries.add_now(question)
        elif (
            error is ErrorCode.CONCURRENT_TRANSACTIONS
            and question.is_adding
            and waited_ns < self._retry_ns_max
        ):
            # The previous transaction probably completes before the client would retry. If it does not
            # within some milliseconds, the coordinator is busy, and more requests would delay it.
            pause_s = max(self._retry_backoff_s, waited_ns / 1e9 * PAUSE_PER_WAITED)
            self._retries.add(question, min(pause_s, (self._retry_ns_max - waited_ns) / 1e9))
        else:
            self._settle(question, error, proof)

    async def _sweep(self) -> None:
        """Refuse batches that have waited too long."""
        while True:
            await self._clock.sleep(_SWEEP_S)
            late_ns = self._clock.monotonic_ns() - self._wait_ns_max
            while self._by_age and (oldest := next(iter(self._by_age))).since_ns < late_ns:
                self._settle(oldest, ErrorCode.NETWORK_EXCEPTION)
                await turn()

    async def _refuse_in_turns(self, questions: Iterable[_Question[P]], error: ErrorCode) -> None:
        for question in questions:
            await self._turn.wait()
            if not question.is_settled:
                self._settle(question, error)

    def _settle(self, question: _Question[P], error: ErrorCode, proof: P | None = None) -> None:
        """Settle the batches of a question in order. Later batches of the producer form a new question, and
        so do batches that this turn has no time to append.
        """
        question.is_settled = True
        if question.lane is not None:
            question.lane.pop(question, None)
        # A request in flight may still refer to the question, and its batches are not counted any more.
        batches, question.batches = question.batches, []
        del self._by_age[question]
        of_partition = self._open[question.where]
        del of_partition[question.claim.producer_id]
        if not of_partition:
            del self._open[question.where]
        error = error_for(question.write, question.refusal or error)
        self._results[error is ErrorCode.NONE].add()
        self._waits.record((self._clock.monotonic_ns() - question.since_ns) // 1_000)
        for number, batch in enumerate(batches):
            is_late = number and error is ErrorCode.NONE and self._turn.is_spent
            if is_late and batch.may_wait():
                self._ask_again(question, batches[number:])
                break
            self._turn.spend()
            self._held_bytes -= _held_bytes(batch, question.claim)
            batch.settled(error, proof)

    def _ask_again(self, question: _Question[P], rest: list[WaitingBatch[P]]) -> None:
        """Let the last batches of an accepted question wait for the next turn, behind earlier batches that
        already wait again. If the transaction is open then, they are appended without another request.
        """
        where, claim = question.where, question.claim
        waiting = self._open.get(where, {}).get(claim.producer_id)
        if waiting is None:
            waiting = self._ask(where, claim, question.write)
            waiting.is_rest = True
        waiting.batches += rest


def _held_bytes(batch: WaitingBatch[P], claim: Claim) -> int:
    """Return the memory of a waiting batch."""
    return batch.size_bytes + BATCH_BYTES + CHAR_BYTES_MAX * len(claim.transactional_id)


class _Question(Generic[P]):
    """The waiting batches of one producer for one partition.

    Attributes:
        is_rest: whether earlier batches were just appended, so that the transaction is probably open.
        lane: the queue that may contain the question; None before the first.
        refusal: the error of all batches, because the partition closes. Otherwise a batch could be accepted
            and parked after a later one of its producer that parked directly.
    """

    __slots__ = ("batches", "claim", "is_rest", "is_settled", "lane", "refusal", "since_ns", "where", "write")

    def __init__(self, where: TopicPartition, claim: Claim, write: TransactionalWrite, since_ns: int) -> None:
        self.where = where
        self.claim = claim
        self.write = write
        self.since_ns = since_ns
        self.batches: list[WaitingBatch[P]] = []
        self.is_rest = False
        self.is_settled = False
        self.lane: _Lane[P] | None = None
        self.refusal: ErrorCode | None = None

    @property
    def is_adding(self) -> bool:
        """Whether the partition may be added to the transaction."""
        return self.write is TransactionalWrite.ADDING

    @property
    def size_bytes(self) -> int:
        """Size in a request, rounded up."""
        return QUESTION_BYTES + len(self.claim.transactional_id.encode()) + len(self.where[0])

    def row(self, topics: dict[str, list[int]]) -> AddPartitionsToTxnTransaction:
        """Return the request's row for these partitions and this question's claim."""
        return AddPartitionsToTxnTransaction(
            *self.claim,
            not self.is_adding,
            [AddPartitionsToTxnTopic(name, indexes) for name, indexes in topics.items()],
        )


_Lane: TypeAlias = OrderedDict[_Question[P], None]
"""The questions to one broker, in order. A settled question leaves the queue."""
