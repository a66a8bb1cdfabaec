"""Appends of one partition that are not durable yet, oldest first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from ponor_broker.partitions.state.producer_entry import ProducerBatch

OnSettled: TypeAlias = Callable[[BaseException | None], None]
"""Called once per append, in the order of the partition's appends: with None if the append is durable and
readable, otherwise with the error."""

InFlightAppend: TypeAlias = tuple[int, int, int, int, OnSettled]
"""Base offset, end offset, largest timestamp, size in bytes, callback. A tuple for speed, because every
request creates one."""


class PlainAppend(Protocol):
    """A batch within a request frame, for `Partition.append_plain`: its place and its header fields."""

    position: int
    size_bytes: int
    count: int
    max_timestamp: int
    min_timestamp: int
    producer: ProducerBatch | None

    def settled(self, error: BaseException | None) -> None:
        """Complete the append; see `OnSettled`."""
        ...


class InFlightAppends(deque[InFlightAppend]):
    """`append` adds an append, `popleft` removes the oldest."""

    __slots__ = ("repeats",)

    def __init__(self) -> None:
        super().__init__()
        self.repeats: dict[int, list[OnSettled]] = {}
        """Callbacks of requests that repeated a batch in flight, by end offset. Nearly always empty."""

    def add_callback(self, end_offset: int, on_settled: OnSettled) -> bool:
        """Add a callback for a repetition of the batch that ends at `end_offset`; return False if this batch
        is not in flight.

        The number of running requests bounds the number of callbacks.
        """
        for _, end, _, _, _ in self:
            if end >= end_offset:
                self.repeats.setdefault(end, []).append(on_settled)
                return True
        return False

    def report_repeats(self, end_offset: int, error: BaseException | None) -> None:
        """Call the callbacks of requests that repeated the batch that ends at `end_offset`."""
        for on_settled in self.repeats.pop(end_offset, ()):
            on_settled(error)


def settled_future(then: OnSettled | None = None) -> tuple[asyncio.Future[None], OnSettled]:
    """Return a future, and the callback of an append that completes it and then calls `then`."""
    result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled(error: BaseException | None) -> None:
        if not result.done():
            result.set_result(None) if error is None else result.set_exception(error)
        if then is not None:
            then(error)

    return result, settled
