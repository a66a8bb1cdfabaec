"""The write-ahead log's protocol: what storage and recovery need of a backend. No backend lives here.

Entries are numbered from 0 without holes; an entry holds the encoded records that were handed over together. Backends: `file_wal`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from ponor_runtime.disk import Buffer

from s3stream.records import StreamRecord


class WriteAheadLog(Protocol):
    """Where an append is durable before it is acknowledged. One node, one log, one writer."""

    @property
    def created(self) -> bool:
        """Whether this process made the log: then it holds nothing of an earlier process, not even the proof that it existed."""
        ...

    @property
    def retained_bytes(self) -> int:
        """Bytes from the trim point to the end."""
        ...

    @property
    def next_sequence(self) -> int:
        """The number of the next entry."""
        ...

    @property
    def room_bytes(self) -> int:
        """How much may be appended now without leaving the window or overfilling the queue; may be negative.

        A hint: `append` takes more, because what closes a block must be written for the log to shrink. Whoever appends bounds how
        much that is.
        """
        ...

    @property
    def waits_for_space(self) -> bool:
        """Whether entries wait because there is no space for them, and a trim would give some."""
        ...

    def when_full(self, callback: Callable[[], None]) -> None:
        """Call whenever the log begins or goes on to wait for space."""
        ...

    def append(self, buffers: Sequence[Buffer], on_durable: Callable[[BaseException | None], None]) -> int:
        """Write encoded records as one entry, at once if nothing is being written.

        Args:
            buffers: they must not change until `on_durable` is called.
            on_durable: called once, never from within this call, in the order of the entries: with None when the entry and all before it
                are durable, or with the error; then nothing more can be acknowledged.

        Returns:
            The entry's number.

        Raises:
            StorageFailedError: the log failed before.
        """
        ...

    def recover(self) -> AsyncIterator[tuple[int, StreamRecord]]:
        """Every record from the trim point on, in order, with its entry's number. Only before the first append.

        Raises:
            WalCorruptError: while iterating; bytes below the newest proof of sync are damaged.
        """
        ...

    def trim(self, before_sequence: int) -> None:
        """Entries below are not needed any more. Lazy: a crash may bring some of them back."""
        ...

    async def close(self) -> None:
        """Finish what was handed over and leave a clean end."""
        ...
