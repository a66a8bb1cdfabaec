"""Bytes of answers that clients have not read; the listener updates the count, and Fetch reads it."""

from __future__ import annotations


class AnswerBacklog:
    """Sum over all connections whose client reads too slowly.

    Answers in a socket's buffer hold cached record batches in memory, so the sum is bounded. At the
    bound, Fetch returns at most one batch per answer.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_waiting = 0

    @property
    def is_full(self) -> bool:
        """Whether answers must be small."""
        return self.bytes_waiting >= self._bytes_max

    def replace(self, before_bytes: int, after_bytes: int) -> None:
        """Update one connection's share."""
        self.bytes_waiting += after_bytes - before_bytes
        assert self.bytes_waiting >= 0
