"""Protocol of the write-ahead log: what storage and recovery need of an implementation.

Entries are numbered in order; an entry contains the encoded records of one append call. Implementations: `file_wal`
on a local disk, `object_wal` in the object store.
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
    def gathers(self) -> bool:
        """Whether the log itself decides what is written together: then every turn's entry is handed over at once. Otherwise one entry
        gathers while others are in flight.
        """
        ...

    @property
    def trim_is_recorded(self) -> bool:
        """Whether the controller keeps the trim point: then the commit of every upload carries it."""
        ...

    @property
    def retained_bytes(self) -> int:
        """Bytes from the trim point to the end."""
        ...

    @property
    def next_sequence(self) -> int:
        """The number of the next entry, which entries before it may share."""
        ...

    @property
    def record_bytes_max(self) -> int:
        """The largest record (header included) that the log takes."""
        ...

    @property
    def wants_upload(self) -> bool:
        """Whether so much is retained that an upload should be forced."""
        ...

    @property
    def may_carry(self) -> bool:
        """Whether so little is retained that an upload may leave a small rest in the log."""
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
            buffers: header and payload of each record in turns; they must not change until `on_durable` is called.
            on_durable: called once, never from within this call, in the order of the entries: with None when the entry and all before it
                are durable, or with the error; then nothing more can be acknowledged.

        Returns:
            The entry's number; entries that a log writes together share one.

        Raises:
            StorageFailedError: the log failed before, or can never take this entry.
            WalFullError: too much is queued; an entry is taken in any case when nothing is.
        """
        ...

    def hurry(self) -> None:
        """Somebody waits for what was appended so far: it is not to be held back for the sake of fewer writes."""
        ...

    def recover(self) -> AsyncIterator[tuple[int, StreamRecord]]:
        """Every record from the trim point on, in order, with its entry's number. Only before the first append.

        Raises:
            WalCorruptError: while iterating; bytes below the newest proof of sync are damaged.
        """
        ...

    def trim(self, before_sequence: int, *, recorded_sequence: int = 0) -> None:
        """Entries below are not needed any more. Lazy: a crash may bring some of them back.

        Args:
            before_sequence: the lowest entry with anything that is not committed.
            recorded_sequence: the same, as the last commit told the controller; 0: it told nothing. A log that others recover drops nothing above.
        """
        ...

    async def close(self, *, needless: bool = False) -> None:
        """Finish what was handed over and leave a clean end.

        Args:
            needless: everything is uploaded and all streams are closed, so that the log will not be read again.
        """
        ...
