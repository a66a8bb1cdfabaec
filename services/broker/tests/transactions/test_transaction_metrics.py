"""Metrics of transactions: outcomes, durations, refusals, loads, markers and verifications."""

from __future__ import annotations

import asyncio

import pytest
from ponor_broker.transactions.verification import Claim
from ponor_broker.transactions.verification_errors import TransactionalWrite
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import TRANSACTIONS_TOPIC
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.transactions.coordinator_world import TransactionWorld
from services.broker.tests.transactions.marker_world import Ended, MarkerWorld, Sent
from services.broker.tests.transactions.verification_world import VerificationWorld

A, B = ("t", 0), ("t", 1)


def seconds(telemetry: Telemetry, name: str, **labels: str) -> tuple[int, float]:
    """Number of recorded values, and their sum."""
    histogram = telemetry.histogram(name, **labels)
    return sum(histogram.counts), histogram.total / 1_000_000


@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_ended_transaction_is_counted_when_its_markers_are_durable(*, is_commit: bool) -> None:
    world = TransactionWorld()
    await world.start()
    await world.init()
    await world.add(1000, 0, 0)
    await world.clock.pass_ms(3_000)
    await world.end(1000, 0, commit=is_commit)
    outcome = "commit" if is_commit else "abort"
    ended = world.telemetry.counter("ponor_transactions_total", outcome=outcome)
    await world.clock.pass_ms(2_000)
    assert ended.value == 0
    world.sent[0].finish()
    await world.clock.settle()
    assert ended.value == 1
    assert seconds(world.telemetry, "ponor_transaction_open_seconds") == (1, 3.0)
    assert seconds(world.telemetry, "ponor_transaction_completion_seconds") == (1, 2.0)
    assert world.telemetry.counter("ponor_transaction_timeouts_total").value == 0
    await world.coordinator.close()


async def test_timeouts_and_refusals_are_counted() -> None:
    world = TransactionWorld()
    await world.start()
    assert await world.end(1000, 0) == "INVALID_PRODUCER_ID_MAPPING"
    await world.init(ms=1_000)
    await world.add(1000, 0, 0)
    await world.clock.pass_ms(2_000)
    assert world.telemetry.counter("ponor_transaction_timeouts_total").value == 1
    assert await world.init() == "CONCURRENT_TRANSACTIONS"
    refused = {
        request: world.telemetry.counter("ponor_transaction_errors_total", request=request, error=error).value
        for request, error in (("end", "INVALID_PRODUCER_ID_MAPPING"), ("init", "CONCURRENT_TRANSACTIONS"))
    }
    assert refused == {"end": 1, "init": 1}
    await world.coordinator.close()


async def test_a_load_counts_its_ids() -> None:
    world = TransactionWorld()
    await world.start()
    for name in ("a", "b", "c"):
        await world.init(name)
    await world.restart()
    labels = {"topic": TRANSACTIONS_TOPIC}
    assert world.telemetry.counter("ponor_coordinator_keys_loaded_total", **labels).value == 3
    loads, _ = seconds(world.telemetry, "ponor_coordinator_load_seconds", **labels)
    assert loads == len(world.logs)
    await world.coordinator.close()


def test_sent_and_repeated_markers_are_counted() -> None:
    world = MarkerWorld()
    refused: list[Sent] = []

    def code(sent: Sent) -> ErrorCode:
        if sent in refused:
            return ErrorCode.NONE
        refused.append(sent)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    async def story(world: MarkerWorld) -> None:
        world.code = code
        world.put(A, 1)
        world.put(B, 2)
        await world.send(Ended(7, 3, frozenset({A, B})))
        assert world.telemetry.counter("ponor_transaction_markers_sent_total").value == 4
        assert world.telemetry.counter("ponor_transaction_marker_retries_total").value == 2

    world.run(story)


def test_verifications_are_counted_with_their_requests_and_waits() -> None:
    async def story(world: VerificationWorld) -> None:
        name = world.id_at(1)
        wrong = Claim(world.id_at(1, 1), 8, 0)
        world.judge = lambda claim, *_: (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING if claim == wrong else ErrorCode.NONE
        )
        await asyncio.gather(
            world.verify(Claim(name, 7, 3), A), world.verify(Claim(name, 7, 3), B), world.verify(wrong, A)
        )
        await world.verify(Claim(name, 7, 3), A, TransactionalWrite.ADDING, take_proof=lambda: None)
        results = {
            result: world.telemetry.counter("ponor_transaction_verifications_total", result=result).value
            for result in ("accepted", "refused")
        }
        assert results == {"accepted": 3, "refused": 1}
        requests = world.telemetry.counter("ponor_transaction_verification_requests_total").value
        assert requests == len(world.requests)
        waits, total_s = seconds(world.telemetry, "ponor_transaction_verification_seconds")
        assert waits == 4
        assert total_s > 0

    VerificationWorld().run(story)
