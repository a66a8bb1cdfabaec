"""The guarantees of a transactional id hold for any order of events, failed writes and restarts."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ponor_broker.transactions.events import AddRequest, EndRequest, InitRequest, ProducerClaim, RequestId
from ponor_broker.transactions.instructions import (
    Answer,
    Forget,
    Instruction,
    Markers,
    SendMarkers,
    SetTimer,
    TimerKind,
    TransactionAnswer,
    Write,
)
from ponor_broker.transactions.records import (
    EPOCH_MAX,
    NO_PRODUCER,
    TopicPartition,
    TransactionRecord,
    TransactionState,
)
from ponor_broker.transactions.transaction import Transaction
from ponor_kafka.errors import ErrorCode
from ponor_runtime.identity import ProducerId

from tests.examples import examples

PARTITIONS_MAX = 6
PARTITIONS = st.frozensets(st.tuples(st.sampled_from("tu"), st.integers(0, 3)), min_size=1, max_size=3)
ERRORS = st.sampled_from([ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
NEVER = RequestId(0)


class TransactionMachine(RuleBasedStateMachine):
    """Clients with current and outdated epochs, a slow and failing disk, and restarts of the coordinator.

    A failed write may be in the log all the same, as after a lost acknowledgement; the restart that then
    follows reads it.
    """

    @initialize(epoch=st.sampled_from([0, EPOCH_MAX - 2, EPOCH_MAX - 1]))
    def begin(self, epoch: int) -> None:
        self.now_ms = 1_000
        self.last_request = 0
        self.last_producer_id = 999
        self.log: list[TransactionRecord | None] = []
        self.waiting: set[RequestId] = set()
        self.write: list[TransactionRecord | None] = []
        self.markers: Markers | None = None
        self.outcomes: dict[tuple[ProducerId, int], bool] = {}
        self.claims: list[ProducerClaim] = []
        self.is_forgotten = False
        self.has_timeout = self.has_retry = False
        self.transaction = Transaction(PARTITIONS_MAX)
        self.init(None)
        self.write_ends()
        record = self.transaction.record
        assert record is not None
        # As if the producer had been used before.
        self.transaction.record = replace(record, producer_epoch=epoch)
        self.log[-1] = self.transaction.record
        self.claims = [ProducerClaim(record.producer_id, epoch)]

    # --- what happens

    def _number(self) -> RequestId:
        self.last_request += 1
        self.now_ms += 1
        request = RequestId(self.last_request)
        self.waiting.add(request)
        return request

    def _new_id(self) -> ProducerId | None:
        if not self.transaction.needs_producer_id:
            return None
        self.last_producer_id += 1
        return ProducerId(self.last_producer_id)

    @rule(which=st.none() | st.integers(0, 5))
    def init(self, which: int | None) -> None:
        expected = None if which is None or not self.claims else self.claims[-1 - which % len(self.claims)]
        request = InitRequest(60_000, expected, self._number())
        self._run(self.transaction.init_producer_id(request, self.now_ms, self._new_id()))

    @rule(which=st.integers(0, 3), partitions=PARTITIONS, is_generation_2=st.booleans())
    def add(self, which: int, partitions: frozenset[TopicPartition], is_generation_2: bool) -> None:
        claim = self.claims[-1 - which % len(self.claims)]
        request = AddRequest(claim, partitions, is_generation_2, self._number())
        self._run(self.transaction.add_partitions(request, self.now_ms))

    @rule(which=st.integers(0, 3), is_commit=st.booleans(), is_generation_2=st.booleans())
    def end(self, which: int, is_commit: bool, is_generation_2: bool) -> None:
        claim = self.claims[-1 - which % len(self.claims)]
        request = EndRequest(claim, is_commit, is_generation_2, self._number())
        self._run(self.transaction.end(request, self.now_ms, self._new_id()))

    @precondition(lambda self: self.has_timeout)
    @rule()
    def timeout(self) -> None:
        self.has_timeout = False
        self._run(self.transaction.timed_out(self.now_ms, self._new_id()))

    @precondition(lambda self: self.has_retry)
    @rule()
    def retry(self) -> None:
        self.has_retry = False
        self._run(self.transaction.markers_done(self.now_ms))

    @precondition(lambda self: self.markers is not None)
    @rule()
    def markers_arrive(self) -> None:
        self.markers = None
        self._run(self.transaction.markers_done(self.now_ms))

    @precondition(lambda self: self.write)
    @rule()
    def write_ends(self) -> None:
        self.log.append(self.write.pop())
        self._run(self.transaction.written(ErrorCode.NONE, self.now_ms))

    @precondition(lambda self: self.write)
    @rule(error=ERRORS)
    def write_fails(self, error: ErrorCode) -> None:
        before = self.transaction.record
        self.write.pop()
        self._run(self.transaction.written(error, self.now_ms))
        assert self.transaction.record == before

    @rule(is_in_the_log=st.booleans())
    def restart(self, is_in_the_log: bool) -> None:
        if self.write and is_in_the_log:
            self.log.append(self.write[0])
        self._run(self.transaction.unload(ErrorCode.NOT_COORDINATOR))
        assert not self.waiting
        self._load()

    @precondition(lambda self: not self.write)
    @rule()
    def expire(self) -> None:
        self._run(self.transaction.expire(self.now_ms, 0))

    def _load(self) -> None:
        self.write, self.markers, self.has_timeout, self.has_retry = [], None, False, False
        newest = self.log[-1]
        self.transaction = Transaction(PARTITIONS_MAX, newest)
        if newest is None:
            self.init(None)  # the id is used again
        else:
            self._run(self.transaction.loaded())

    # --- what follows

    def _run(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Answer(request, body):
                    self.waiting.remove(request)  # KeyError: answered twice
                    self._hear(body)
                case Write(record):
                    assert not self.write, "two writes in flight"
                    self.write.append(record)
                case SendMarkers(markers):
                    self._send(markers)
                case SetTimer(TimerKind.TIMEOUT):
                    self.has_timeout = True
                case SetTimer():
                    self.has_retry = True
                case Forget():
                    self._load()

    def _hear(self, answer: TransactionAnswer) -> None:
        if answer.error is ErrorCode.NONE and answer.producer_id != NO_PRODUCER:
            claim = ProducerClaim(answer.producer_id, answer.producer_epoch)
            assert claim.epoch < EPOCH_MAX, "nothing could fence this producer"
            if self.claims:
                assert claim >= max(self.claims), "an id or epoch was given out again"
            self.claims.append(claim)

    def _send(self, markers: Markers) -> None:
        newest = self.log[-1]
        assert newest is not None
        assert newest.state.is_prepared, "markers before the outcome is durable"
        assert markers.is_commit == newest.state.is_commit
        assert markers.partitions == newest.partitions
        if markers.is_generation_2:
            key = (markers.producer_id, markers.producer_epoch)
            assert self.outcomes.setdefault(key, markers.is_commit) == markers.is_commit
        self.markers = markers

    # --- what always holds

    @invariant()
    def log_is_a_legal_course(self) -> None:
        if len(self.log) < 2:
            return
        before, after = self.log[-2:]
        if before is None or after is None:
            ended = before or after
            assert ended is None or before is None or not (before.state.is_prepared or before.partitions)
            return
        if before.state.is_prepared:
            assert after.state.is_complete, "a decided transaction ends"
            assert after.state.is_commit == before.state.is_commit, "the outcome is the decided one"
        if after.state.is_prepared:
            assert after.partitions == before.partitions
            assert before.state is TransactionState.ONGOING or not after.state.is_commit
            assert after.producer_epoch == before.producer_epoch + after.is_generation_2
        if before.state is TransactionState.ONGOING:
            assert after.state is TransactionState.ONGOING or after.state.is_prepared
            assert before.partitions <= after.partitions
        if before.producer_id == after.producer_id:
            assert after.producer_epoch in {before.producer_epoch, before.producer_epoch + 1}
        else:
            assert after.producer_epoch == 0
            assert before.is_exhausted

    @invariant()
    def replay_of_the_log_is_equivalent(self) -> None:
        newest = self.log[-1]
        if newest is None or self.write:
            return
        assert self.transaction.record == newest
        replayed = Transaction(PARTITIONS_MAX, newest)
        replayed.loaded()
        assert replayed.is_busy == self.transaction.is_busy
        assert replayed.needs_producer_id == self.transaction.needs_producer_id
        for claim in self.claims[-3:]:
            for partition in (("t", 0), ("u", 1)):
                verified = self.transaction.verify_partitions(claim, {partition})
                assert replayed.verify_partitions(claim, {partition}) == verified
            for is_commit in (False, True):
                for generation_2 in (False, True):
                    request = EndRequest(claim, is_commit, generation_2, NEVER)
                    ended = deepcopy(self.transaction).end(request, self.now_ms, ProducerId(1))
                    again = Transaction(PARTITIONS_MAX, newest).end(request, self.now_ms, ProducerId(1))
                    assert ended == again

    @invariant()
    def something_follows(self) -> None:
        """An open or decided transaction has a timer, a write or markers that continue it."""
        if self.transaction.state.is_prepared:
            assert self.write or self.markers is not None or self.has_retry
        if self.transaction.state is TransactionState.ONGOING:
            assert self.write or self.has_timeout

    def teardown(self) -> None:
        if not hasattr(self, "transaction"):
            return
        for _ in range(10):
            if self.write:
                self.write_ends()
            elif self.markers is not None:
                self.markers_arrive()
            elif self.has_retry:
                self.retry()
            elif self.has_timeout:
                self.timeout()
        assert not self.waiting, "a request has no answer"
        assert not self.transaction.is_busy
        assert self.transaction.state is not TransactionState.ONGOING


TransactionMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
TestTransaction = TransactionMachine.TestCase
