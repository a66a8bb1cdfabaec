"""Linearizable reads that wait for their index.

What lives here: the numbers by which the core answers, the futures behind them, and the time after which nobody waits any longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ponor_raft.errors import NotLeaderError
from ponor_raft.ready import ReadReady
from ponor_runtime.clock import Clock

READ_SECONDS: Final = 2.0
"""Two election timeouts: a new leader answers within it, or there is none."""
ATTEMPT_SECONDS: Final = 0.25
"""A question or its answer may get lost; it is asked again."""


class LinearizableReads:
    """Questions under way."""

    def __init__(self, ask: Callable[[int], None], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._waiting: dict[int, asyncio.Future[int | None]] = {}
        self._next_context = 1

    async def read_index(self) -> int:
        """See `Consensus.read_index`."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                while (index := await self._attempt()) is None:
                    await self._clock.sleep(ATTEMPT_SECONDS / 10)
                return index
        except TimeoutError:
            raise NotLeaderError("no leader answered; ask again, or another controller") from None

    def answered(self, reads: Sequence[ReadReady]) -> None:
        """The core's answers."""
        for read in reads:
            future = self._waiting.pop(read.context, None)
            if future is not None and not future.done():
                future.set_result(read.index)

    async def _attempt(self) -> int | None:
        context = self._next_context
        self._next_context += 1
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting[context] = future
        try:
            self._ask(context)
            async with asyncio.timeout(ATTEMPT_SECONDS):
                return await future
        except TimeoutError:
            return None
        finally:
            self._waiting.pop(context, None)
