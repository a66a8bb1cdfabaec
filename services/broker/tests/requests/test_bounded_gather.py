"""Rows of a request are processed with bounded concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from ponor_broker.requests.bounded_gather import bounded_gather


async def test_results_are_in_order_and_concurrency_is_bounded() -> None:
    running = most = made = 0

    async def row(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert made <= (number // 4 + 1) * 4, "no coroutine is made before its turn"
        await asyncio.sleep(0)
        running -= 1
        return number

    def rows() -> Iterator[Coroutine[Any, Any, int]]:
        nonlocal made
        for number in range(10):
            made += 1
            yield row(number)

    assert await bounded_gather(rows(), together_max=4) == list(range(10))
    assert most == 4
    assert await bounded_gather([]) == []


async def test_an_error_cancels_the_remaining_work() -> None:
    begun: list[int] = []

    async def row(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise ValueError("row 1")

    with pytest.raises(ValueError, match="row 1"):
        await bounded_gather((row(number) for number in range(10)), together_max=2)
    assert begun == [0, 1]
