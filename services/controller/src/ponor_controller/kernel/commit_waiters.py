"""Callbacks that wait for the commit of an index.

When leadership ends, waiters get NOT_LEADER, although the next leader may still commit their index.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from ponor_metadata.image.image import MetadataImage
from ponor_rpc.errors import OperationError

W = TypeVar("W")
Committed: TypeAlias = Callable[[W], None]
Dropped: TypeAlias = Callable[[W, OperationError], None]
_Waiters: TypeAlias = tuple[int, Committed[Any], Dropped[Any], list[Any]]
"""The index, the callback after the commit, the callback after the end of leadership, and the waiters for the
index."""


class CommitWaiters:
    """Waiters of one term of leadership, in the order of their indices."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._waiting: deque[_Waiters] = deque()

    def when_reached(self, index: int, committed: Committed[W], dropped: Dropped[W], waiter: W) -> None:
        """Call back when everything up to `index` is committed (at once if it is). Call this only
        while leading.

        Args:
            index: at most `last_index`.
            committed: called with `waiter` after the commit.
            dropped: called with `waiter` and NOT_LEADER when leadership ends before the commit is known.
            waiter: the argument of the callbacks. It replaces a closure, because thousands may wait, and a
                closure for each would cost as much as its answer.
        """
        if index <= self._image.index:
            committed(waiter)
            return
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last[0] == index and last[1] == committed:
            last[3].append(waiter)
        elif last is None or last[0] <= index:
            self._waiting.append((index, committed, dropped, [waiter]))
        else:  # a repeated operation waits for the index of the first request, which is still in flight
            position = next(at for at, other in enumerate(self._waiting) if other[0] > index)
            self._waiting.insert(position, (index, committed, dropped, [waiter]))

    async def reached(self, index: int) -> None:
        """Wait until everything up to `index` is committed.

        Raises:
            OperationError: NOT_LEADER if leadership ended before the commit was known.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_reached(index, _wake, _drop, done)
        await done

    def advance(self, index: int) -> None:
        """Everything up to `index` is committed: call its waiters."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= index:
            _, committed, _, waiters = waiting.popleft()
            for waiter in waiters:
                committed(waiter)

    def drop(self, error: OperationError) -> None:
        """Leadership ended: all waiters get `error`."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, dropped, waiters in waiting:
            for waiter in waiters:
                dropped(waiter, error)


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _drop(done: asyncio.Future[None], error: OperationError) -> None:
    if not done.done():
        done.set_exception(error)
