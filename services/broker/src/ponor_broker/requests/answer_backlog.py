"""Bytes of answers that clients have not read: one number that the listener keeps and Fetch looks at.

What lives here: the count alone. Answers that wait in a socket's buffer pin cached record batches, so their sum is bounded: while it is above
its bound, Fetch answers with no more than one batch.
"""

from __future__ import annotations


class AnswerBacklog:
    """Sum over all connections whose client does not keep up."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_waiting = 0

    @property
    def is_full(self) -> bool:
        """Whether answers should be small."""
        return self.bytes_waiting >= self._bytes_max

    def replace(self, before_bytes: int, after_bytes: int) -> None:
        """One connection's share changed."""
        self.bytes_waiting += after_bytes - before_bytes
        assert self.bytes_waiting >= 0
