"""Batches that wait for a coordinator are settled in turns of the event loop, and in order."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from ponor_broker.transactions.verification import (
    BATCHES_PER_QUESTION_MAX,
    SETTLED_PER_TURN_MAX,
    Claim,
    WaitingBatch,
)
from ponor_broker.transactions.verification_errors import TransactionalWrite
from ponor_kafka.errors import ErrorCode

from services.broker.tests.transactions.verification_world import Partition, Proof, VerificationWorld

A = ("a", 0)
VERIFIED, NONE = TransactionalWrite.VERIFIED, ErrorCode.NONE


def test_batches_of_one_answer_are_settled_in_turns() -> None:
    """Each batch is decompressed and validated when it is settled."""

    async def story(world: VerificationWorld) -> None:
        loop, per_turn, over = asyncio.get_running_loop(), [0], asyncio.Event()
        settled: dict[int, list[int]] = {}
        partition = Partition()

        def submit(producer: int, number: int) -> None:
            claim = Claim(world.id_at(1, producer), producer, 3)

            def note(error: ErrorCode, _: Proof | None) -> None:
                assert error is NONE
                partition.append(claim, number)
                settled.setdefault(producer, []).append(number)
                if not per_turn[-1]:
                    loop.call_soon(per_turn.append, 0)
                per_turn[-1] += 1
                if sum(per_turn) == 550:
                    over.set()

            take_proof = partial(partition.take_proof, claim)
            world.verifier.submit(A, claim, WaitingBatch(VERIFIED, 10, take_proof, lambda: True, note))

        for number in range(250):
            submit(0, number)
        for producer in range(1, 301):
            submit(producer, producer)
        await over.wait()
        # The simulated loop shuffles the callbacks of a turn, so the count of two turns may be added.
        assert max(per_turn) <= 2 * SETTLED_PER_TURN_MAX
        assert settled.pop(0) == list(range(250))
        assert settled == {producer: [producer] for producer in range(1, 301)}
        assert not world.verifier._open
        assert not world.verifier._by_age
        assert world.verifier._held_bytes == 0

    VerificationWorld().run(story)


@pytest.mark.parametrize("is_open", [False, True])
def test_batches_behind_one_that_was_not_appended_are_settled_with_it(is_open: bool) -> None:
    """The first batch waits for its partition, which moves: the others must wait behind it there."""

    async def story(world: VerificationWorld) -> None:
        settled: list[int] = []
        claim, partition = Claim(world.id_at(1), 7, 3), Partition()
        take_proof = partial(partition.take_proof, claim)

        def submit(number: int) -> None:
            def note(error: ErrorCode, _: Proof | None) -> None:
                assert error is NONE
                settled.append(number)

            world.verifier.submit(A, claim, WaitingBatch(VERIFIED, 10, take_proof, lambda: False, note))

        for number in range(250):
            submit(number)
        if is_open:
            partition.open[7] = 3
        (question,) = world.verifier._open[A].values()
        world.verifier._settle(question, NONE, Proof())
        assert settled == list(range(250))
        assert not world.verifier._open

    VerificationWorld().run(story)


def test_batches_that_are_refused_after_the_answer_are_settled_in_turns() -> None:
    """The validation of a compressed batch may take 100 ms, and a refused batch opens no transaction."""

    async def story(world: VerificationWorld) -> None:
        loop, per_turn, settled, over = asyncio.get_running_loop(), [0], list[int](), asyncio.Event()
        claim = Claim(world.id_at(1), 7, 3)

        def submit(number: int) -> None:
            def note(error: ErrorCode, _: Proof | None) -> None:
                assert error is NONE
                if not per_turn[-1]:
                    loop.call_soon(per_turn.append, 0)
                per_turn[-1] += 1
                settled.append(number)
                if number == 249:
                    over.set()

            world.verifier.submit(A, claim, WaitingBatch(VERIFIED, 10, Proof, lambda: True, note))

        for number in range(250):
            submit(number)
        await over.wait()
        assert settled == list(range(250))
        assert max(per_turn) <= SETTLED_PER_TURN_MAX
        assert world.verifier._held_bytes == 0

    VerificationWorld().run(story)


def test_a_partition_that_closes_refuses_many_batches_in_turns() -> None:
    """With 10,000 producers, the refusals took 0.3 s. An answer that arrives meanwhile accepts no batch: it
    could be parked behind a later one of its producer.
    """

    async def story(world: VerificationWorld) -> None:
        loop, per_turn, outcomes = asyncio.get_running_loop(), [0], list[ErrorCode]()

        def note(error: ErrorCode, _: Proof | None) -> None:
            if not per_turn[-1]:
                loop.call_soon(per_turn.append, 0)
            per_turn[-1] += 1
            outcomes.append(error)

        for producer in range(1_000):
            claim = Claim(world.id_at(1, producer % 300), producer, 3)
            world.verifier.submit(A, claim, WaitingBatch(VERIFIED, 10, Proof, lambda: True, note))
        while not world.requests:
            await asyncio.sleep(0.0001)
        questions = list(world.verifier._open[A].values())
        world.verifier.refuse(A, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for question in questions[-10:]:
            world.verifier._answered(question, NONE, Proof())
        while len(outcomes) < 1_000:
            await asyncio.sleep(0)
        assert set(outcomes) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        # The simulated loop shuffles the callbacks of a turn, so the count of two turns may be added.
        assert max(per_turn) <= 2 * SETTLED_PER_TURN_MAX
        assert not world.verifier._open

    VerificationWorld().run(story)


def test_the_number_of_batches_that_wait_for_one_answer_is_bounded() -> None:
    """They may have to be refused, or parked, in one turn."""

    async def story(world: VerificationWorld) -> None:
        outcomes: list[ErrorCode] = []
        claim = Claim(world.id_at(1), 7, 3)
        for _ in range(BATCHES_PER_QUESTION_MAX + 1):
            batch = WaitingBatch(VERIFIED, 10, Proof, lambda: True, lambda error, _: outcomes.append(error))
            world.verifier.submit(A, claim, batch)
        assert outcomes == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        while len(outcomes) <= BATCHES_PER_QUESTION_MAX:
            await asyncio.sleep(0.001)
        assert set(outcomes[1:]) == {NONE}
        assert world.verifier._held_bytes == 0

    VerificationWorld().run(story)
