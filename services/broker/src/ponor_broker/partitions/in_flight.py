"""Appends of a partition on their way to the disk, and whom to tell of them.

What lives here: the entry of one append. The queue of them is the partition's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

OnSettled: TypeAlias = Callable[[BaseException | None], None]
"""Told once what became of an append, in the order of the partition's appends: None when it is durable and readable, or the error."""


class InFlightAppend:
    """An append that is not durable yet."""

    __slots__ = ("_repeats", "base_offset", "end_offset", "max_timestamp", "on_settled", "size_bytes")

    def __init__(
        self, base_offset: int, end_offset: int, max_timestamp: int, size_bytes: int, on_settled: OnSettled
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.max_timestamp = max_timestamp
        self.size_bytes = size_bytes
        self.on_settled = on_settled
        self._repeats: list[OnSettled] | None = None

    def tell_also(self, on_settled: OnSettled) -> None:
        """The same batch was sent again before it was durable. How often is bounded by the requests in process."""
        if self._repeats is None:
            self._repeats = []
        self._repeats.append(on_settled)

    def tell(self, error: BaseException | None) -> None:
        """What became of it."""
        self.on_settled(error)
        if self._repeats is not None:
            for on_settled in self._repeats:
                on_settled(error)
