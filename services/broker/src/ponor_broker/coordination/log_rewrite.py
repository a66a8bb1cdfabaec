"""Rewrite of a shard's state at the end of its own log, and the trim of the part before
(docs/design/log-cleaner.md#consumer-offsets).

Shortens the log of a partition of an internal topic while writes continue. A rewrite appends ordinary
records, so that replay needs no special case. The order of the steps makes a rewrite safe:

    1. The boundary is the log's end, or an offset below the first open transaction. Wait until every write
        and marker below the end has completed, so that memory contains everything below the boundary.
    2. Write every key in memory again, batch by batch, with its current value. Skip a key with a write in
        flight: memory does not have the newest value, and the write is above the boundary. Also skip a key
        that a marker in flight may change. Pending offsets are not written again: their batches are above the
        boundary. A header in each rewritten record marks its value as older than all pending offsets.
    3. When the last batch of the rewrite, and thus every batch, is durable, trim the log below the boundary.

A crash before the third step leaves a longer log with the same content.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple

from ponor_kafka.errors import ErrorCode
from ponor_runtime.turns import turn
from s3stream.errors import S3StreamError

from ponor_broker.coordination.record_format import E
from ponor_broker.coordination.record_log import RecordLog

_LOG = logging.getLogger(__name__)
BATCH_BYTES: Final = 64 << 10
"""Size of the batches that a rewrite builds. A rewrite holds one batch in memory."""
BATCH_ENTRIES_MAX: Final = 250


class _Trim(NamedTuple):
    """The trim that completes a rewrite: the state below the boundary has been written again above it."""

    before_offset: int
    dropped_bytes: int
    state_bytes: int


class LogRewrite(Generic[E]):
    """The rewrites of one shard. `load` and `write` never run at the same time."""

    def __init__(
        self, log: RecordLog[E], rows: Callable[[], Iterator[E | None]], *, log_bytes_min: int, ratio: int
    ) -> None:
        """Create the rewrites of a log.

        Args:
            log: the log.
            rows: iterates over the state in memory, one entry for each key that exists when the iteration
                reaches it. The records of keys that are created later are above the boundary. None stands
                for work without an entry, such as a key that must not be rewritten now.
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
        """The remaining step of a rewrite whose records are durable."""

    def loaded(self, state_bytes: int) -> None:
        """Note the size that the restored state has as records."""
        self._state_bytes = state_bytes

    @property
    def is_due(self) -> bool:
        """Whether the log is too long relative to its state."""
        if self._is_writing or self._is_stopped or self._log.holds_unknown_kinds:
            return False
        longest_bytes = max(self._log_bytes_min, self._ratio * self._state_bytes)
        # The part above the first open transaction cannot be trimmed.
        return self._log.size_bytes > longest_bytes and self._log.droppable()[1] > longest_bytes

    def stop(self) -> None:
        """Abort a running rewrite, because the shard is about to clear its memory."""
        self._is_stopped = True

    async def write(self) -> bool:
        """Rewrite the state and trim the log; return False if the log was not trimmed: try again later."""
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
        await self._log.flushed()  # wait for the writes of the skipped keys
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

    def _next_batch(self, rows: Iterator[E | None]) -> tuple[int, list[E]] | None:
        """Return the next rows with their current values, and their size; None at the end.

        The caller appends them without an await, so that no newer write of one of their keys can
        precede them.
        """
        in_flight = self._log.keys_in_flight()
        entries: list[E] = []
        seen, size_bytes = 0, 0
        for entry in rows:
            seen += 1
            if entry is not None:
                size_bytes += self._log.size_of(entry)
                if entry.key not in in_flight:
                    entries.append(entry)
            if size_bytes >= BATCH_BYTES or seen >= BATCH_ENTRIES_MAX:
                break
        return (size_bytes, entries) if seen else None

    async def _append(self, entries: list[E]) -> ErrorCode:
        """Append the entries without an await, then wait until all writes have completed or failed; the
        log's failure count shows failed writes.
        """
        if not entries:
            await turn()
        for part in self._log.in_parts(entries):
            error = self._log.try_append(part, lambda _: None, is_rewrite=True)
            if error is not ErrorCode.NONE:
                return error
        await self._log.flushed()
        return ErrorCode.NONE
