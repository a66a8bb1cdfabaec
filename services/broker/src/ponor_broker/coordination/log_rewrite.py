"""Rewrite of a shard's state into its own log, and the trim of the log before it
(docs/design/log-cleaner.md#consumer-offsets).

Shortens the log of a partition of an internal topic while writes continue. A rewrite consists
of ordinary records in log order, so replay needs no special case. The order of steps makes it safe:

    1. the boundary is the log's end, or a place before the first open transaction; wait until every write
        and marker below the end has completed, so that memory contains everything below the boundary
    2. write every key in memory again, batch by batch, with its current value. A key with a write
        in flight is skipped: memory does not have its newest value, and that write is above the
        boundary anyway. So is one that a marker in flight may change. The records have a header that
        shows that pending offsets are newer: these are above the boundary, and are not written again
    3. when the last batch is durable, all before it are: trim the log below the boundary

A crash before the third step leaves a longer log with the same content.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple

from ponor_kafka.errors import ErrorCode
from s3stream.errors import S3StreamError

from ponor_broker.coordination.record_format import E
from ponor_broker.coordination.record_log import RecordLog

_LOG = logging.getLogger(__name__)
BATCH_BYTES: Final = 64 << 10
"""Size of one step of the rewrite, and its memory at a time."""
BATCH_ENTRIES_MAX: Final = 250


class _Trim(NamedTuple):
    """The last step: everything below the boundary has been written again above it."""

    before_offset: int
    dropped_bytes: int
    state_bytes: int


class LogRewrite(Generic[E]):
    """The rewrites of one shard. `load` and `write` never run at the same time."""

    def __init__(
        self, log: RecordLog[E], rows: Callable[[], Iterator[E]], *, log_bytes_min: int, ratio: int
    ) -> None:
        """Create the rewrites of a log.

        Args:
            log: the log.
            rows: iterates over the state in memory, one entry for each key that exists when the iteration
                reaches it; newer keys are above the boundary.
            log_bytes_min: a shorter log is not rewritten.
            ratio: a log is rewritten when it is this many times as long as its state.
        """
        self._log = log
        self._rows = rows
        self._log_bytes_min = log_bytes_min
        self._ratio = ratio
        self._state_bytes = 0
        self._is_writing = False
        self._is_stopped = False
        self._trim: _Trim | None = None
        """The remaining step of a rewrite that is durable."""

    def loaded(self, state_bytes: int) -> None:
        """Note the size of the restored state as records."""
        self._state_bytes = state_bytes

    @property
    def is_due(self) -> bool:
        """Whether the log is too long relative to its state."""
        if self._is_writing or self._is_stopped or self._log.holds_unknown_kinds:
            return False
        longest_bytes = max(self._log_bytes_min, self._ratio * self._state_bytes)
        # A transaction that stays open for long keeps the log from being trimmed.
        return self._log.size_bytes > longest_bytes and self._log.droppable()[1] > longest_bytes

    def stop(self) -> None:
        """Abort a running rewrite, because memory is about to be cleared and the rewrite would be
        incomplete.
        """
        self._is_stopped = True

    async def write(self) -> bool:
        """Rewrite the state and trim the log; return False if it was not possible now and the log
        has its old length.
        """
        assert not self._is_writing
        self._is_writing = True
        try:
            self._trim = self._trim or await self._write()
            return self._trim is not None and await self._finish(self._trim)
        finally:
            self._is_writing = False

    async def _write(self) -> _Trim | None:
        (boundary, below_bytes), failures = self._log.droppable(), self._log.failures
        await self._log.flushed()
        state_bytes = 0
        rows = self._rows()
        while batch := self._next_batch(rows):
            batch_bytes, entries = batch
            error = await self._append(entries)
            if error is not ErrorCode.NONE:
                _LOG.warning("the rewrite of %s was aborted: %s", self._log.name, error.meaning)
                return None
            state_bytes += batch_bytes
        await self._log.flushed()  # the writes of skipped keys
        if self._is_stopped or self._log.failures != failures:
            return None
        return _Trim(boundary, below_bytes, state_bytes)

    async def _finish(self, trim: _Trim) -> bool:
        try:
            await self._log.trim(trim.before_offset, trim.dropped_bytes)
        except S3StreamError as error:
            _LOG.warning("trimming %s below %d failed: %s", self._log.name, trim.before_offset, error)
            return False
        self._trim = None
        self._state_bytes = trim.state_bytes
        return True

    def _next_batch(self, rows: Iterator[E]) -> tuple[int, list[E]] | None:
        """Return the next rows with their current values, and their size; None at the end.

        The caller appends them without an await, so that no newer write of one of their keys can
        precede them.
        """
        in_flight = self._log.keys_in_flight()
        entries: list[E] = []
        seen, size_bytes = 0, 0
        for entry in rows:
            seen += 1
            size_bytes += self._log.size_of(entry)
            if entry.key not in in_flight:
                entries.append(entry)
            if size_bytes >= BATCH_BYTES or seen >= BATCH_ENTRIES_MAX:
                break
        return (size_bytes, entries) if seen else None

    async def _append(self, entries: list[E]) -> ErrorCode:
        """Append the entries without an await, then wait until they are durable; the log's failure
        count shows failed writes.
        """
        for part in self._log.in_parts(entries):
            error = self._log.try_append(part, lambda _: None, is_rewrite=True)
            if error is not ErrorCode.NONE:
                return error
        await self._log.flushed()
        return ErrorCode.NONE
