"""Appends of a partition on their way to the disk, and whom to tell of them.

What lives here: the queue of one partition's appends, oldest first. What an append means is the partition's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

OnSettled: TypeAlias = Callable[[BaseException | None], None]
"""Told once what became of an append, in the order of the partition's appends: None when it is durable and readable, or the error."""

InFlightAppend: TypeAlias = tuple[int, int, int, int, OnSettled]
"""Base offset, end offset, largest timestamp, size in bytes, whom to tell. A tuple: every request makes one."""


class InFlightAppends(deque[InFlightAppend]):
    """The appends that are not durable yet; `append` adds one, `popleft` takes the oldest."""

    __slots__ = ("repeats",)

    def __init__(self) -> None:
        super().__init__()
        self.repeats: dict[int, list[OnSettled]] = {}
        """By end offset: who sent the same batch again meanwhile. Nearly always empty."""

    def tell_also(self, end_offset: int, on_settled: OnSettled) -> bool:
        """The batch that ends here was sent again before it was durable; False if none that ends there is in flight.

        How often is bounded by the requests in process.
        """
        for _, end, _, _, _ in self:
            if end >= end_offset:
                self.repeats.setdefault(end, []).append(on_settled)
                return True
        return False

    def tell_repeats(self, end_offset: int, error: BaseException | None) -> None:
        """Tell those who sent the batch that ends here again."""
        for on_settled in self.repeats.pop(end_offset, ()):
            on_settled(error)
