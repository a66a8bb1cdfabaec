"""Event loop in its own thread, so that blocking callers, or callers inside another loop (a notebook), can
use gRPC.
"""

from __future__ import annotations

import asyncio
import threading  # noqa: TID251 - a driver is no service: Spark calls it blocking, from any thread
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")
STOP_S_MAX = 10.0


class LoopThread:
    """Runs coroutines for blocking callers until it is closed."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to completion; return its result or raise its exception."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine without waiting for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Stop the loop and cancel running coroutines. Idempotent."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S_MAX)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
