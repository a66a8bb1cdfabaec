"""Get the index of linearizable reads: match answers to requests, retry, enforce the timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ponor_raft.errors import NotLeaderError
from ponor_raft.ready import ReadReady
from ponor_runtime.clock import Clock

READ_SECONDS: Final = 2.0
"""Timeout of a read: two default election timeouts, so that a new leader can still answer it."""
ATTEMPT_SECONDS: Final = 0.25
"""Time after which a request is repeated, because the request or its answer may be lost."""


class LinearizableReads:
    """Reads that wait for their index."""

    def __init__(self, request: Callable[[int], None], clock: Clock) -> None:
        self._request = request
        self._clock = clock
        self._waiting: dict[int, asyncio.Future[int | None]] = {}
        self._next_context = 1

    async def read_index(self) -> int:
        """See `Consensus.read_index`."""
        contexts: list[int] = []
        try:
            async with asyncio.timeout(READ_SECONDS):
                while (index := await self._attempts(contexts)) is None:
                    await self._clock.sleep(ATTEMPT_SECONDS / 10)
                return index
        except TimeoutError:
            raise NotLeaderError("no leader answered; try again, or try another controller") from None
        finally:
            for context in contexts:
                self._waiting.pop(context, None)

    def answered(self, reads: Sequence[ReadReady]) -> None:
        """Complete reads with the answers of the Raft core."""
        for read in reads:
            future = self._waiting.pop(read.context, None)
            if future is not None and not future.done():
                future.set_result(read.index)

    async def _attempts(self, contexts: list[int]) -> int | None:
        """Repeat the request until one of the requests is answered, or refused (None). An answer to an
        earlier request counts, because a round trip to a majority may take longer than `ATTEMPT_SECONDS`.
        """
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        while not answer.done():
            context = self._next_context
            self._next_context += 1
            contexts.append(context)
            self._waiting[context] = answer
            self._request(context)
            await asyncio.wait((answer,), timeout=ATTEMPT_SECONDS)
        return answer.result()
