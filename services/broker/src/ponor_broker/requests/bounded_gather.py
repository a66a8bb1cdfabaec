"""Gather the results of many coroutines, of which a bounded number runs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")
ROWS_TOGETHER_MAX: Final = 256
"""Number of rows of one request that are processed at a time."""


async def bounded_gather(
    work: Iterable[Coroutine[Any, Any, T]], *, together_max: int = ROWS_TOGETHER_MAX
) -> list[T]:
    """Return the results in order, like `asyncio.gather`.

    A client chooses how many rows a request has. Without a bound, the first steps of all rows would run in
    one turn of the event loop, and each row would have a task.

    Args:
        work: coroutines; pass a generator, so that each is created only when it can run.
        together_max: number of coroutines that run at a time. The next ones begin when all of these have
        ended.
    """
    results: list[T] = []
    rest = iter(work)
    while part := list(islice(rest, together_max)):
        results += await asyncio.gather(*part)
    return results
