"""Bounds of the marker sender's work in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from ponor_broker.transactions import marker_sender
from ponor_broker.transactions.marker_sender import ROUTED_PER_TURN_MAX, MarkerSender, Refusals
from ponor_kafka.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from services.broker.tests.transactions.marker_world import HERE, Ended, MarkerWorld, Where, all_of

LARGE = frozenset(("t", index) for index in range(3_000))


def test_the_markers_of_a_large_transaction_are_added_in_steps() -> None:
    """50,000 markers took 90 ms. Later transactions of the producer still follow in order."""
    world = MarkerWorld(latency_s=lambda: 0.0)

    async def story(world: MarkerWorld) -> None:
        for where in LARGE:
            world.put(where, HERE)
        first, second = Ended(7, 3, LARGE), Ended(7, 4, frozenset({("t", 2_999), ("t", 0)}))
        over = asyncio.gather(world.send(first), world.send(second))
        await asyncio.sleep(0)
        assert len(world.sender._newest) <= 2 * ROUTED_PER_TURN_MAX
        assert list(await over) == [{}, {}]
        assert sorted(world.accepted) == sorted(all_of(first) + all_of(second))
        for one in all_of(second):
            assert world.accepted.index(one) > world.accepted.index((7, 3, one[2]))
        assert not world.sender._newest
        assert not world.sender._incomplete

    world.run(story)


def test_a_shard_that_closes_adds_no_further_markers_of_a_large_transaction() -> None:
    world = MarkerWorld(latency_s=lambda: 0.0)

    async def story(world: MarkerWorld) -> None:
        for where in LARGE:
            world.put(where, HERE)
        ended: list[Refusals] = []
        world.sender.send(0, 5, Ended(7, 3, LARGE), ended.append)
        world.sender.cancel(0)
        again = await world.send(Ended(7, 3, LARGE), shard=1)
        assert (ended, again) == ([], {})
        assert max(Counter(world.sent).values()) == 1
        assert not world.sender._newest

    world.run(story)


def test_the_markers_of_unanswered_requests_are_retried_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests to several brokers may end together, each with 1,000 markers."""
    monkeypatch.setattr(marker_sender, "TURN_NS_MAX", 0)
    world = MarkerWorld(latency_s=lambda: 0.0)
    retries = [0]
    retry = MarkerSender._retry

    def counted(sender: MarkerSender, *arguments: object) -> None:
        if not retries[-1]:
            asyncio.get_running_loop().call_soon(retries.append, 0)
        retries[-1] += 1
        retry(sender, *arguments)  # type: ignore[arg-type]

    async def failing(_: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        if sum(retries):
            return await MarkerWorld._local(world, _)
        raise TimeoutError

    monkeypatch.setattr(MarkerSender, "_retry", counted)
    monkeypatch.setattr(world, "_local", failing)
    partitions: frozenset[Where] = frozenset(("t", index) for index in range(300))

    async def story(world: MarkerWorld) -> None:
        for where in partitions:
            world.put(where, HERE)
        assert await world.send(Ended(7, 3, partitions)) == {}
        assert sum(retries) == 300
        # The simulated loop shuffles the callbacks of a turn, so the count of several turns may be added.
        assert max(retries) < 10

    world.run(story)
