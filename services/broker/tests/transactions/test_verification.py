"""Questions to coordinators: sharing, order, errors, proofs, bounds, and a swarm of ending transactions."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from ponor_broker.settings import BrokerSettings
from ponor_broker.transactions.verification import (
    REQUEST_BYTES_MAX,
    VERSION,
    Claim,
    WaitingBatch,
)
from ponor_broker.transactions.verification_errors import (
    TransactionalWrite,
    error_of_offset_commit,
    error_of_produce,
    write_of_offset_commit,
    write_of_produce,
)
from ponor_kafka.codec import encode
from ponor_kafka.errors import ErrorCode

from services.broker.tests.transactions.verification_world import (
    BYTES_MAX,
    RETRY_MS_MAX,
    WAIT_MS_MAX,
    Partition,
    Proof,
    VerificationWorld,
    Where,
)

A, B = ("a", 0), ("b", 1)
OLD, VERIFIED, ADDING = (
    TransactionalWrite.VERIFIED_OLD,
    TransactionalWrite.VERIFIED,
    TransactionalWrite.ADDING,
)
NONE = ErrorCode.NONE
CONTROL_REQUEST_BYTES_MAX = BrokerSettings().control_request_bytes_max
Story = Callable[[VerificationWorld], Awaitable[None]]


@pytest.mark.parametrize("node_id", range(3))
@pytest.mark.parametrize("write", TransactionalWrite)
def test_a_question_reaches_the_coordinator_of_the_id(node_id: int, write: TransactionalWrite) -> None:
    async def story(world: VerificationWorld) -> None:
        claim = Claim(world.id_at(node_id), 7, 3)
        assert await world.verify(claim, A, write) is NONE
        ((asked, request),) = world.requests
        (row,) = request.transactions
        assert asked == node_id
        assert (row.transactional_id, row.producer_id, row.producer_epoch) == claim
        assert row.verify_only == (write is not ADDING)
        assert [(topic.name, topic.partitions) for topic in row.topics] == [("a", [0])]

    VerificationWorld().run(story)


def test_questions_to_one_coordinator_share_requests() -> None:
    async def story(world: VerificationWorld) -> None:
        claims = [Claim(world.id_at(1, number), number, 0) for number in range(50)]
        outcomes = await asyncio.gather(*(world.verify(c, w) for c in claims for w in (A, B)))
        assert outcomes == [NONE] * 100
        assert len(world.requests) <= 2

    VerificationWorld().run(story)


def test_questions_with_long_ids_do_not_make_a_request_too_large() -> None:
    """A broker closes the connection after a larger request, and all of its questions fail."""

    async def story(world: VerificationWorld) -> None:
        ids = ("x" * 32_000 + str(number) for number in range(600))
        long = [name for name in ids if world.coordinator_of(name) == 1]
        claims = [Claim(name, number, 0) for number, name in enumerate(long)]
        assert len(claims) > CONTROL_REQUEST_BYTES_MAX // 32_000
        assert await asyncio.gather(*(world.verify(claim, A) for claim in claims)) == [NONE] * len(claims)
        sizes = [len(encode(request, VERSION)) for _, request in world.requests]
        assert max(sizes) <= CONTROL_REQUEST_BYTES_MAX // 2
        assert len(sizes) <= 2 + sum(sizes) // (REQUEST_BYTES_MAX // 2)

    VerificationWorld(bytes_max=1 << 26).run(story)


def test_ids_with_two_epochs_or_purposes_get_separate_requests() -> None:
    async def story(world: VerificationWorld) -> None:
        name = world.id_at(1)
        outcomes = await asyncio.gather(
            world.verify(Claim(name, 7, 3), ("a", 0)),
            world.verify(Claim(name, 7, 4), ("a", 1)),
            world.verify(Claim(name, 7, 4), ("a", 2), ADDING),
        )
        assert set(outcomes) == {NONE}
        assert sum(len(request.transactions) for _, request in world.requests) == 3

    VerificationWorld().run(story)


def test_batches_of_a_producer_are_settled_in_order_with_one_answer() -> None:
    async def story(world: VerificationWorld) -> None:
        settled: list[int] = []
        claim, over = Claim(world.id_at(1), 7, 3), asyncio.Event()

        def submit(number: int) -> None:
            def note(error: ErrorCode, _: Proof | None) -> None:
                assert error is NONE
                settled.append(number)
                if number == 9:
                    over.set()

            world.verifier.submit(A, claim, WaitingBatch(VERIFIED, 10, Proof, lambda: True, note))

        for number in range(5):
            submit(number)
        await asyncio.sleep(0.001)  # the question is on its way
        for number in range(5, 10):
            submit(number)
        assert world.verifier.is_waiting(A, 7)
        await over.wait()
        assert settled == list(range(10))
        assert not world.verifier.is_waiting(A, 7)
        assert len(world.requests) == 1

    VerificationWorld().run(story)


@pytest.mark.parametrize(
    ("code", "write", "expected", "produced", "committed"),
    [
        (ErrorCode.PRODUCER_FENCED, VERIFIED, ErrorCode.INVALID_PRODUCER_EPOCH, None, None),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ADDING, ErrorCode.INVALID_PRODUCER_EPOCH, None, None),
        (ErrorCode.INVALID_TXN_STATE, VERIFIED, ErrorCode.INVALID_TXN_STATE, None, None),
        (ErrorCode.TRANSACTION_ABORTABLE, OLD, ErrorCode.INVALID_TXN_STATE, None, None),
        (ErrorCode.TRANSACTION_ABORTABLE, VERIFIED, ErrorCode.TRANSACTION_ABORTABLE, None, None),
        (ErrorCode.TRANSACTION_ABORTABLE, ADDING, ErrorCode.TRANSACTION_ABORTABLE, None, None),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, OLD, ErrorCode.INVALID_PRODUCER_ID_MAPPING, None, None),
        (ErrorCode.NOT_COORDINATOR, OLD, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS, None),
        (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ADDING,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            None,
        ),
        (
            ErrorCode.CONCURRENT_TRANSACTIONS,
            VERIFIED,
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            None,
        ),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ADDING, ErrorCode.CONCURRENT_TRANSACTIONS, None, None),
        (
            ErrorCode.NETWORK_EXCEPTION,
            ADDING,
            ErrorCode.NETWORK_EXCEPTION,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_errors_are_those_of_kafka(
    code: ErrorCode,
    write: TransactionalWrite,
    expected: ErrorCode,
    produced: ErrorCode | None,
    committed: ErrorCode | None,
) -> None:
    async def story(world: VerificationWorld) -> None:
        error = await world.verify(Claim(world.id_at(1), 7, 3), A, write)
        assert error is expected
        assert error_of_produce(write, error) is (produced or expected)
        assert error_of_offset_commit(error) is (committed or expected)

    VerificationWorld(judge=lambda *_: code).run(story)


def test_the_kind_of_a_write_follows_its_version() -> None:
    assert [write_of_produce(version) for version in range(10, 14)] == [OLD, VERIFIED, ADDING, ADDING]
    assert [write_of_offset_commit(version) for version in range(3, 7)] == [OLD, VERIFIED, ADDING, ADDING]


def test_an_error_of_the_whole_request_concerns_every_question() -> None:
    async def story(world: VerificationWorld) -> None:
        name = world.id_at(1)
        outcomes = await asyncio.gather(*(world.verify(Claim(name, 7, 3), where) for where in (A, B)))
        assert outcomes == [ErrorCode.INVALID_TXN_STATE] * 2

    VerificationWorld(top_error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED).run(story)


def test_an_unknown_error_code_of_a_newer_broker_is_an_error() -> None:
    async def story(world: VerificationWorld) -> None:
        assert await world.verify(Claim(world.id_at(1), 7, 3), A) is ErrorCode.UNKNOWN_SERVER_ERROR

    VerificationWorld(judge=lambda *_: 32_000).run(story)  # type: ignore[arg-type]


def test_adding_is_repeated_while_the_previous_transaction_ends() -> None:
    codes = iter([ErrorCode.CONCURRENT_TRANSACTIONS] * 3)

    async def story(world: VerificationWorld) -> None:
        proofs: list[Proof] = []

        def take_proof() -> Proof:
            proofs.append(Proof())
            return proofs[-1]

        claim = Claim(world.id_at(1), 7, 3)
        assert await world.verify(claim, A, ADDING, take_proof=take_proof) is NONE
        # The marker of the previous transaction arrives between the attempts: each needs its own proof.
        assert len(proofs) == len(world.requests) == 4

    VerificationWorld(judge=lambda *_: next(codes, NONE)).run(story)


def test_adding_is_not_repeated_for_longer_than_the_bound() -> None:
    async def story(world: VerificationWorld) -> None:
        time_s = asyncio.get_running_loop().time
        start_s = time_s()
        error = await world.verify(Claim(world.id_at(0), 7, 3), A, ADDING)  # the broker's own coordinator
        assert error is ErrorCode.CONCURRENT_TRANSACTIONS
        assert 2 <= len(world.requests) <= 1 + RETRY_MS_MAX // 20
        # The last pause ends at the bound; only the last answer arrives after it.
        assert RETRY_MS_MAX / 1000 <= time_s() - start_s <= RETRY_MS_MAX / 1000 + 0.01

    VerificationWorld(judge=lambda *_: ErrorCode.CONCURRENT_TRANSACTIONS).run(story)


def test_a_marker_that_is_appended_before_the_answer_repeats_the_question() -> None:
    async def story(world: VerificationWorld) -> None:
        partition, claim = Partition(), Claim(world.id_at(1), 7, 3)
        world.latency_s = lambda: 1.0
        verifying = asyncio.ensure_future(
            world.verify(claim, A, take_proof=lambda: partition.take_proof(claim))
        )
        await asyncio.sleep(1.5)  # the coordinator has judged, its answer is on its way
        partition.mark(7)
        world.judge = lambda *_: ErrorCode.INVALID_TXN_STATE
        assert await verifying is ErrorCode.INVALID_TXN_STATE
        assert len(world.requests) == 2

    VerificationWorld().run(story)


def test_a_transaction_that_is_open_when_the_request_is_sent_needs_no_answer() -> None:
    async def story(world: VerificationWorld) -> None:
        assert await world.verify(Claim(world.id_at(1), 7, 3), A, take_proof=lambda: None) is NONE
        assert world.requests == []

    VerificationWorld().run(story)


def test_a_newer_epoch_fences_waiting_batches_and_an_older_one_is_refused() -> None:
    async def story(world: VerificationWorld) -> None:
        name = world.id_at(1)
        old = asyncio.ensure_future(world.verify(Claim(name, 7, 3), A))
        await asyncio.sleep(0.0001)
        new = asyncio.ensure_future(world.verify(Claim(name, 7, 4), A))
        await asyncio.sleep(0.0001)
        assert await world.verify(Claim(name, 7, 2), A) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await old is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await new is NONE

    VerificationWorld().run(story)


def test_a_coordinator_that_is_not_there_is_a_retriable_error() -> None:
    async def story(world: VerificationWorld) -> None:
        claim = Claim(world.id_at(1), 7, 3)
        leaders = world.leaders[:]
        world.leaders[:] = [-1] * len(leaders)
        assert await world.verify(claim, A) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.leaders[:] = []
        assert await world.verify(claim, A) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.leaders[:] = leaders
        del world.directory.hosts[1]
        assert await world.verify(claim, A) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.requests == []

    VerificationWorld().run(story)


def test_a_crashed_coordinator_is_a_retriable_error_and_the_next_question_is_answered() -> None:
    async def story(world: VerificationWorld) -> None:
        claim = Claim(world.id_at(1), 7, 3)
        world.latency_s = lambda: 1.0
        verifying = asyncio.ensure_future(world.verify(claim, A))
        await asyncio.sleep(0.5)
        world.brokers[1].crash()
        assert await verifying is ErrorCode.NETWORK_EXCEPTION
        world.brokers[1].start()
        while (error := await world.verify(claim, A)) is not NONE:
            assert error is ErrorCode.COORDINATOR_NOT_AVAILABLE

    VerificationWorld().run(story)


def test_a_coordinator_that_does_not_answer_is_given_up() -> None:
    async def story(world: VerificationWorld) -> None:
        assert await world.verify(Claim(world.id_at(1, 1), 8, 3), A) is NONE
        world.network.cut("b1", "b0")
        claims = [Claim(world.id_at(1, number), number, 3) for number in range(5)]
        outcomes = []
        for claim in claims:
            outcomes.append(asyncio.ensure_future(world.verify(claim, B)))
            await asyncio.sleep(1)
        errors = await asyncio.wait_for(asyncio.gather(*outcomes), 2 * WAIT_MS_MAX / 1_000)
        assert set(errors) <= {ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_NOT_AVAILABLE}

    VerificationWorld().run(story)


def test_a_partition_that_closes_refuses_its_batches_alone() -> None:
    async def story(world: VerificationWorld) -> None:
        name = world.id_at(1)
        closing = [asyncio.ensure_future(world.verify(Claim(name, n, 3), A)) for n in range(3)]
        other = asyncio.ensure_future(world.verify(Claim(name, 0, 3), B))
        await asyncio.sleep(0.0001)
        world.verifier.refuse(A, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await asyncio.gather(*closing) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
        assert await other is NONE
        assert not world.verifier._open
        assert not world.verifier._by_age

    VerificationWorld().run(story)


def test_the_memory_of_waiting_batches_is_bounded() -> None:
    async def story(world: VerificationWorld) -> None:
        claim = Claim(world.id_at(1), 7, 3)
        first = asyncio.ensure_future(world.verify(claim, A, size_bytes=BYTES_MAX))
        await asyncio.sleep(0.0001)
        assert await world.verify(claim, A) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await first is NONE
        assert await world.verify(claim, A) is NONE
        assert world.verifier._held_bytes == 0

    VerificationWorld().run(story)


def test_long_transactional_ids_count_towards_the_bound() -> None:
    """A character may take four bytes, and the batch may be a small commit of offsets."""

    async def story(world: VerificationWorld) -> None:
        ids = ("x" * 32_000 + str(number) for number in range(100))
        long = [name for name in ids if world.coordinator_of(name) == 1][:12]
        claims = [Claim(name, number, 0) for number, name in enumerate(long)]
        outcomes = await asyncio.gather(*(world.verify(claim, A) for claim in claims))
        assert Counter(outcomes) == {NONE: 8, ErrorCode.COORDINATOR_NOT_AVAILABLE: 4}
        assert world.verifier._held_bytes == 0

    VerificationWorld().run(story)


def test_closing_refuses_every_batch() -> None:
    async def story(world: VerificationWorld) -> None:
        verifying = asyncio.ensure_future(world.verify(Claim(world.id_at(1), 7, 3), A))
        await asyncio.sleep(0.0001)
        await world.verifier.close()
        assert await verifying is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await world.verify(Claim(world.id_at(1), 7, 3), A) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    VerificationWorld().run(story)


def test_a_partition_that_the_coordinator_does_not_know_refuses_only_its_own_batches() -> None:
    """Batches of several requests share a row, and the coordinator adds all partitions of a row or none."""

    async def story(world: VerificationWorld) -> None:
        claim = Claim(world.id_at(1), 7, 3)
        unknown = ("new", 0)
        names: list[set[Where]] = []

        def judge(_: Claim, where: Where, __: bool) -> ErrorCode:
            row = {
                (topic.name, at)
                for topic in world.requests[-1][1].transactions[0].topics
                for at in topic.partitions
            }
            names.append(row)
            if where == unknown:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return ErrorCode.OPERATION_NOT_ATTEMPTED if unknown in row else NONE

        world.judge = judge
        outcomes = await asyncio.gather(*(world.verify(claim, where, ADDING) for where in (A, unknown, B)))
        assert outcomes == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NONE]
        assert {A, unknown, B} in names

    VerificationWorld().run(story)


class Batch:
    """Something that only a waiting batch refers to."""

    def __call__(self) -> Proof:
        return Proof()


def test_settled_batches_do_not_stay_in_the_queue_of_a_slow_coordinator() -> None:
    """Only waiting batches are counted. A client can settle a batch by one of a higher epoch."""

    async def story(world: VerificationWorld) -> None:
        world.latency_s = lambda: 1.0
        name, outcomes, kept = world.id_at(1), [], []
        first = asyncio.ensure_future(world.verify(Claim(name, 7, 0), B))
        for epoch in range(3):
            await asyncio.sleep(0.01)
            batch = Batch()
            kept.append(weakref.ref(batch))
            verifying = world.verify(Claim(name, 8, epoch), A, take_proof=batch)
            outcomes.append(asyncio.ensure_future(verifying))
            del batch, verifying
        await asyncio.sleep(0.01)
        gc.collect()
        assert [batch() is None for batch in kept] == [True, True, False]
        assert len(world.verifier._lanes[1]) == 1
        refused = ErrorCode.INVALID_PRODUCER_EPOCH
        assert await asyncio.gather(first, *outcomes) == [NONE, refused, refused, NONE]

    VerificationWorld().run(story)
