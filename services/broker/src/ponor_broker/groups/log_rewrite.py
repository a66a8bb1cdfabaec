"""A shard's whole state, written once more into its own log, and the trim below it (docs/design/log-cleaner.md#consumer-offsets).

What lives here: when the log of a partition of `__consumer_offsets` is too long for what it says, and how it becomes short while commits go on. The
rewrite consists of ordinary records, in the log's own order, so that replay knows nothing of it. The order of steps is what makes it safe:

    1. the boundary is the log's end; wait until every write below it has ended, so that memory holds all that is below
    2. write every key that memory holds again, batch by batch, with the value it has then. A key with a write under way is passed over: memory
       does not know its newest value, and that write lies above the boundary itself
    3. when the last batch is durable, so is everything before it: trim the log below the boundary

A crash before the third step leaves a longer log that says the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode
from s3stream.errors import S3StreamError

from ponor_broker.groups.group_table import GroupTable
from ponor_broker.groups.offsets_log import OffsetsLog
from ponor_broker.groups.record_codec import encode_entry
from ponor_broker.groups.records import Entry, GroupEntry, GroupKey, OffsetEntry, OffsetKey
from ponor_broker.groups.settings import GroupSettings

_LOG = logging.getLogger(__name__)
BATCH_BYTES: Final = 64 << 10
"""The rewrite's share of one step of the event loop, and of what is in memory of it at a time."""
BATCH_ENTRIES_MAX: Final = 250


class _Trim(NamedTuple):
    """The last step: everything below the boundary is said again above it."""

    before_offset: int
    dropped_bytes: int
    state_bytes: int


class LogRewrite:
    """Of one shard. `load` and `write` never run at the same time."""

    def __init__(self, log: OffsetsLog, table: GroupTable, settings: GroupSettings) -> None:
        self._log = log
        self._table = table
        self._settings = settings
        self._state_bytes = 0
        self._is_writing = False
        self._is_stopped = False
        self._trim: _Trim | None = None
        """What is left to do of a rewrite that is durable."""

    def loaded(self, state_bytes: int) -> None:
        """The shard was restored; its state is so large as records."""
        self._state_bytes = state_bytes

    @property
    def is_due(self) -> bool:
        """Is the log too long for what it says?"""
        if self._is_writing or self._is_stopped or self._log.holds_unknown_kinds:
            return False
        bound = max(
            self._settings.offsets_rewrite_log_bytes_min,
            self._settings.offsets_rewrite_ratio * self._state_bytes,
        )
        return self._log.size_bytes > bound

    def stop(self) -> None:
        """Memory is about to be emptied: a rewrite that is under way is not complete, and must not be taken for it."""
        self._is_stopped = True

    async def write(self) -> bool:
        """Write everything anew and trim the log. False: not now, the log is as long as before."""
        assert not self._is_writing
        self._is_writing = True
        try:
            self._trim = self._trim or await self._write()
            return self._trim is not None and await self._finish(self._trim)
        finally:
            self._is_writing = False

    async def _write(self) -> _Trim | None:
        boundary, below_bytes, failures = self._log.end_offset, self._log.size_bytes, self._log.failures
        await self._log.flushed()
        state_bytes = 0
        rows = self._rows()
        while batch := self._next_batch(rows):
            batch_bytes, entries = batch
            error = await self._append(entries)
            if error is not ErrorCode.NONE:
                _LOG.warning("the rewrite of %s is given up: %s", self._log.name, error.meaning)
                return None
            state_bytes += batch_bytes
        await self._log.flushed()  # the writes of keys that were passed over
        if self._is_stopped or self._log.failures != failures:
            return None
        return _Trim(boundary, below_bytes, state_bytes)

    async def _finish(self, trim: _Trim) -> bool:
        try:
            await self._log.trim(trim.before_offset, trim.dropped_bytes)
        except S3StreamError as error:
            _LOG.warning("%s cannot be trimmed below %d now: %s", self._log.name, trim.before_offset, error)
            return False
        self._trim = None
        self._state_bytes = trim.state_bytes
        return True

    def _next_batch(self, rows: Iterator[Entry]) -> tuple[int, list[Entry]] | None:
        """The next rows as memory has them in this moment, and their size; None at the end.

        The caller appends them without a pause, so that no newer write of one of their keys can come before them.
        """
        in_flight = self._log.keys_in_flight()
        entries: list[Entry] = []
        seen, size_bytes = 0, 0
        for entry in rows:
            seen += 1
            key, value = encode_entry(entry)
            size_bytes += len(key) + len(value or b"")
            if entry.key not in in_flight:
                entries.append(entry)
            if size_bytes >= BATCH_BYTES or seen >= BATCH_ENTRIES_MAX:
                break
        return (size_bytes, entries) if seen else None

    def _rows(self) -> Iterator[Entry]:
        """A row for each key that is held when the iteration comes to it; what is newer than that lies above the boundary."""
        for group in self._table:
            if group in self._table and group.durable is not None:
                yield GroupEntry(GroupKey(group.group_id), group.durable)
            for topic, index in group.offsets.partitions():
                committed = group.offsets.get((topic, index))
                if group in self._table and committed is not None:
                    yield OffsetEntry(OffsetKey(group.group_id, topic, index), committed)

    async def _append(self, entries: list[Entry]) -> ErrorCode:
        """Take the entries without a pause, then wait until they are durable; how a write ends is seen in the log's count of failures."""
        for part in self._log.in_parts(entries):
            error = self._log.try_append(part, lambda _: None)
            if error is not ErrorCode.NONE:
                return error
        await self._log.flushed()
        return ErrorCode.NONE
