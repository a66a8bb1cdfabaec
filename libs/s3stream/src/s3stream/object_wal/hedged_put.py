"""A put that is sent once more when no answer came for long: same key, same bytes, put if absent, so that two are one.

A lost answer holds up everything behind it: the slots of a log, or the end of a recovery. Whoever finds the key taken by the other copy reads it back, as always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import ObjectStore


async def put_hedged(
    store: ObjectStore,
    clock: Clock,
    key: str,
    buffers: Sequence[Buffer],
    *,
    hedge_ms: float,
    may_hedge: Callable[[], bool] = lambda: True,
) -> None:
    """Put, and after `hedge_ms` without an answer put once more beside it; the first answer counts.

    Raises:
        ObjectAlreadyExistsError: the key is taken, perhaps by the other copy.
        ObjectStoreError: see the port.
    """
    first = asyncio.ensure_future(store.put(key, buffers))
    timer = asyncio.ensure_future(clock.sleep(hedge_ms / 1000))
    calls: list[asyncio.Future[None]] = [first, timer]
    try:
        await asyncio.wait((first, timer), return_when=asyncio.FIRST_COMPLETED)
        if first.done() or not may_hedge():
            return await first
        second = asyncio.ensure_future(store.put(key, buffers))
        calls.append(second)
        await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
        return await (first if first.done() else second)
    finally:
        for call in calls:
            call.cancel()
            call.add_done_callback(ignore_outcome)


def ignore_outcome(call: asyncio.Future[Any]) -> None:
    """Nobody asks for this answer any more; an exception that nobody asks for would be reported."""
    if not call.cancelled():
        call.exception()
