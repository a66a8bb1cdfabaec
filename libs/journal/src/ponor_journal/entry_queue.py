"""Bounded FIFO queue of entries that are not durable yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ponor_runtime.disk import Buffer

from ponor_journal.format import entry_cost_bytes

OnDurable: TypeAlias = Callable[[BaseException | None], None]
"""Completion callback, called once: with None when the entry and all entries before it are durable, or with
the error."""


class QueuedEntry:
    """An entry and its callback. The buffers must not change before the callback."""

    __slots__ = ("buffers", "on_durable", "size_bytes")

    def __init__(self, buffers: Sequence[Buffer], size_bytes: int, on_durable: OnDurable) -> None:
        self.buffers = buffers
        self.size_bytes = size_bytes
        self.on_durable = on_durable


class EntryQueue:
    """Waiting entries and the group that is being written. All of them count as queued until they are
    durable.
    """

    def __init__(self, bytes_max: int, group_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._group_bytes_max = group_bytes_max
        self._waiting: deque[QueuedEntry] = deque()
        self._group: list[QueuedEntry] = []
        self.queued_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def has_room(self, size_bytes: int) -> bool:
        """Whether an entry of this size is accepted; an empty queue accepts any size."""
        return self.queued_bytes + size_bytes <= self._bytes_max or self.queued_bytes == 0

    def put(self, entry: QueuedEntry) -> None:
        """Add an entry; requires `has_room`."""
        self.queued_bytes += entry.size_bytes
        self._waiting.append(entry)

    def first_cost_bytes(self) -> int:
        """Bytes that the first waiting entry needs in a frame."""
        return entry_cost_bytes(self._waiting[0].size_bytes)

    def take_group(self, room_bytes: int) -> list[QueuedEntry]:
        """Remove the entries of the next frame: as many as fit into `room_bytes` and the group size, at least
        one.
        """
        assert not self._group
        room_bytes = min(room_bytes, max(self._group_bytes_max, self.first_cost_bytes()))
        waiting, group = self._waiting, self._group
        while waiting:
            room_bytes -= entry_cost_bytes(waiting[0].size_bytes)
            if room_bytes < 0:
                break
            group.append(waiting.popleft())
        assert group, "the first waiting entry does not fit into an empty group"
        return group

    def group_is_durable(self) -> list[QueuedEntry]:
        """Remove the written group from the queue and return its entries; the caller runs their callbacks."""
        group, self._group = self._group, []
        for entry in group:
            self.queued_bytes -= entry.size_bytes
        return group

    def group_returns(self) -> None:
        """Return the entries of a group whose write failed to the front of the queue."""
        self._waiting.extendleft(reversed(self._group))
        self._group = []

    def fail(self) -> list[QueuedEntry]:
        """Remove and return every entry, in order; the caller runs their callbacks with the error."""
        failed = [*self._group, *self._waiting]
        self._group = []
        self._waiting.clear()
        self.queued_bytes = 0
        return failed
