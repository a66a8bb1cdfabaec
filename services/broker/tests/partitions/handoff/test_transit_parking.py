"""Requests that wait for a partition that moves: bounds, order, and the end of the wait."""

from __future__ import annotations

import asyncio
from functools import partial

from ponor_broker.partitions.handoff.transit_parking import (
    CALLS_PER_TURN_MAX,
    REQUEST_BYTES,
    TransitParking,
)
from ponor_runtime.telemetry import Telemetry
from ponor_simulation.simulation import Simulation

HERE, THERE = (b"a" * 16, 0), (b"a" * 16, 1)


def parking(*, ms_max: int = 300, requests_max: int = 100) -> TransitParking:
    return TransitParking(ms_max=ms_max, bytes_max=requests_max * REQUEST_BYTES, telemetry=Telemetry())


async def test_all_requests_are_retried_in_order_when_the_partition_settles() -> None:
    lot, looked = parking(), list[int]()
    for number in range(5):
        assert lot.park(HERE, partial(looked.append, number)) is not None
    assert lot.park(THERE, partial(looked.append, 9)) is not None
    assert looked == []
    lot.settled(HERE)
    assert looked == [0, 1, 2, 3, 4]
    lot.settled(HERE)
    lot.settle_all()
    assert looked == [0, 1, 2, 3, 4, 9]


def test_the_first_timeout_releases_all_requests_and_refuses_new_ones_until_the_partition_settles() -> None:
    """Otherwise a request could be refused while a later one is accepted."""

    async def story() -> None:
        lot, looked = parking(ms_max=600), list[int]()
        lot.park(HERE, partial(looked.append, 0))
        await asyncio.sleep(0.5)
        lot.park(HERE, partial(looked.append, 1))
        await asyncio.sleep(0.09)
        assert looked == []
        await asyncio.sleep(0.02)
        assert looked == [0, 1]
        assert lot.park(HERE, partial(looked.append, 2)) is None
        assert lot.park(THERE, partial(looked.append, 3)) is not None
        lot.settled(HERE)
        assert lot.park(HERE, partial(looked.append, 4)) is not None
        lot.settle_all()
        assert looked == [0, 1, 3, 4]

    Simulation(1).run(story())


async def test_parked_bytes_are_bounded_over_all_partitions_and_released() -> None:
    lot, looked = parking(requests_max=4), list[int]()
    assert lot.park(HERE, partial(looked.append, 0), 2 * REQUEST_BYTES) is not None
    assert lot.park(THERE, partial(looked.append, 1)) is not None
    assert lot.park(THERE, partial(looked.append, 2)) is None
    lot.settled(HERE)
    assert lot.park(THERE, partial(looked.append, 3), 2 * REQUEST_BYTES) is not None
    lot.settle_all()
    assert looked == [0, 1, 3]


async def test_all_partitions_share_the_calls_of_one_turn() -> None:
    lot, looked = parking(requests_max=10_000), list[int]()
    for number in range(3 * CALLS_PER_TURN_MAX):
        assert lot.park((b"a" * 16, number // 2), partial(looked.append, number)) is not None
    lot.settle_all()
    for turn in range(1, 4):
        assert looked == list(range(turn * CALLS_PER_TURN_MAX))
        await asyncio.sleep(0)
    assert not list(lot.partitions)


async def test_requests_that_park_behind_others_do_not_delay_the_end_of_the_calls() -> None:
    lot, looked = parking(requests_max=10_000), list[int]()
    for number in range(3 * CALLS_PER_TURN_MAX):
        lot.park(HERE, partial(looked.append, number))
    lot.settled(HERE)
    number, turns = 3 * CALLS_PER_TURN_MAX, 0
    while lot.holds_back(HERE):
        for _ in range(2 * CALLS_PER_TURN_MAX):
            assert lot.park(HERE, partial(looked.append, number)) is not None
            number += 1
        await asyncio.sleep(0)
        turns += 1
        assert turns < 5
    assert looked == list(range(number))


async def test_a_partition_that_settles_while_late_requests_are_refused_holds_back_new_ones() -> None:
    lot, looked = parking(ms_max=1, requests_max=10_000), list[int]()
    for number in range(2 * CALLS_PER_TURN_MAX):
        lot.park(HERE, partial(looked.append, number))
    while not looked:
        await asyncio.sleep(0)
    assert len(looked) == CALLS_PER_TURN_MAX
    assert lot.park(HERE, partial(looked.append, -1)) is None
    lot.settled(HERE)
    assert lot.holds_back(HERE)
    assert lot.park(HERE, partial(looked.append, 2 * CALLS_PER_TURN_MAX)) is not None
    while lot.holds_back(HERE):
        await asyncio.sleep(0)
    assert looked == list(range(2 * CALLS_PER_TURN_MAX + 1))
    assert not list(lot.partitions)


async def test_a_request_that_left_is_not_called() -> None:
    lot, looked = parking(), list[int]()
    place = lot.park(HERE, partial(looked.append, 0))
    assert place is not None
    lot.park(HERE, partial(looked.append, 1))
    place.leave()
    lot.settled(HERE)
    assert looked == [1]


async def test_no_request_parks_when_waiting_is_disabled() -> None:
    assert parking(ms_max=0).park(HERE, lambda: None) is None


def test_requests_without_acknowledgement_wait_longer_and_are_not_taken_along() -> None:
    async def story() -> None:
        lot, looked = parking(ms_max=300), list[str]()
        lot.park(HERE, partial(looked.append, "silent"), is_silent=True)
        lot.park(HERE, partial(looked.append, "acknowledged"))
        await asyncio.sleep(0.4)
        assert looked == ["acknowledged"]
        assert lot.park(HERE, partial(looked.append, "refused")) is None
        lot.park(HERE, partial(looked.append, "silent too"), is_silent=True)
        assert list(lot.partitions) == [HERE]
        lot.settled(HERE)
        assert looked == ["acknowledged", "silent", "silent too"], "in the order of arrival"
        lot.park(HERE, partial(looked.append, "late"), is_silent=True)
        await asyncio.sleep(5.1)
        assert looked[-1] == "late"
        assert lot.park(HERE, partial(looked.append, "refused"), is_silent=True) is None

    Simulation(1).run(story())
