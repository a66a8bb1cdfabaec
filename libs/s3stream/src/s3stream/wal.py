"""Protocol of the write-ahead log, as storage and recovery use it.

Entries are numbered in order; an entry contains the encoded records of one append call.
Implementations: `file_wal` on a local disk, `object_wal` in the object store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from ponor_runtime.disk import Buffer

from s3stream.records import StreamRecord


class WriteAheadLog(Protocol):
    """Makes appends durable before they are acknowledged. Each node has one log with one writer."""

    @property
    def created(self) -> bool:
        """Whether this process created the log. The log then shows nothing about earlier processes, not
        even whether one existed.
        """
        ...

    @property
    def gathers(self) -> bool:
        """Whether the log itself decides which entries it writes together. It then receives one entry per
        turn of the event loop; otherwise `GroupCommit` fills an entry while others are in flight.
        """
        ...

    @property
    def trim_is_recorded(self) -> bool:
        """Whether the controller records the trim point, so that the commit of every upload carries it."""
        ...

    @property
    def retained_bytes(self) -> int:
        """Bytes from the trim point to the end."""
        ...

    @property
    def next_sequence(self) -> int:
        """Number of the next entry. If the log writes it together with earlier entries, they have the same
        number.
        """
        ...

    @property
    def record_bytes_max(self) -> int:
        """The largest record (including header) that the log accepts."""
        ...

    @property
    def needs_upload(self) -> bool:
        """Whether the log is so full that an upload should be forced."""
        ...

    @property
    def may_carry(self) -> bool:
        """Whether the log is so empty that an upload may leave a small rest in it."""
        ...

    @property
    def room_bytes(self) -> int:
        """Bytes that may be appended now without exceeding the size or the queue of the log; may be negative.

        This is a hint. `append` accepts more, because the records that complete a block must be
        written before the log can shrink. The caller bounds their size.
        """
        ...

    @property
    def waits_for_space(self) -> bool:
        """Whether entries wait for space that a trim would free."""
        ...

    def when_full(self, callback: Callable[[], None]) -> None:
        """Register a callback that is called whenever the log starts or continues to wait for space."""
        ...

    def append(self, buffers: Sequence[Buffer], on_durable: Callable[[BaseException | None], None]) -> int:
        """Write encoded records as one entry; immediately if no write is in progress.

        Args:
            buffers: header and payload of each record, alternating; they must not change until
                `on_durable` is called.
            on_durable: called once, never within this call, in the order of the entries: with None
                when the entry and all before it are durable, or with the error, after which nothing
                more can be acknowledged.

        Returns:
            The entry's number; entries that the log writes together have the same number.

        Raises:
            StorageFailedError: the log failed before, or can never accept this entry.
            WalFullError: the queue is full; an empty queue accepts any entry.
        """
        ...

    def hurry(self) -> None:
        """Write everything appended so far without further delay, because a caller waits for it."""
        ...

    def recover(self) -> AsyncIterator[tuple[int, StreamRecord]]:
        """Yield every record from the trim point on, in order, with its entry's number. Only before
        the first append.

        Raises:
            WalCorruptError: while iterating; bytes below the newest proof of sync are damaged.
        """
        ...

    def trim(self, before_sequence: int, *, recorded_sequence: int = 0) -> None:
        """Release entries below a sequence. They are deleted later; a crash may bring some of them back.

        Args:
            before_sequence: the lowest entry with uncommitted data.
            recorded_sequence: the `before_sequence` that the last commit sent to the controller; 0: none.
                A log that other processes recover deletes only entries below it.
        """
        ...

    async def close(self, *, unneeded: bool = False) -> None:
        """Finish pending writes and close the log cleanly.

        Args:
            unneeded: everything is uploaded and all streams are closed, so the log will not be read again.
        """
        ...
