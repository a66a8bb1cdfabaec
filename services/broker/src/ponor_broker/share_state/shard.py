"""The share partitions of one partition of `__share_group_state`.

Turns requests into records (`transitions.py`), and answers when a record is durable. At most one write per
share partition is in flight; later requests for it wait. Memory changes when the write is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.turns import Steps, turn

from ponor_broker.coordination.log_rewrite import LogRewrite
from ponor_broker.coordination.record_log import RecordLog
from ponor_broker.coordination.share_persister import SharePartitionKey
from ponor_broker.requests.bounded_gather import bounded_gather
from ponor_broker.share_state.records import ShareEntry, ShareSnapshot, ShareUpdate
from ponor_broker.share_state.settings import ShareStateSettings
from ponor_broker.share_state.state_table import HeldState, ShareStateBudget, StateTable
from ponor_broker.share_state.transitions import BATCHES_MAX, Change, applied, as_snapshot

KEYS_PER_STEP: Final = 200
"""Share partitions that one event-loop turn loads, unloads or checks: a few milliseconds."""
_UNDER_WAY_S: Final = 0.02
"""Interval of the check whether writes of an earlier shard are durable."""
Record: TypeAlias = ShareSnapshot | ShareUpdate | None
Decide: TypeAlias = Callable[[ShareSnapshot | None], Change]
"""Returns the record for a request, from the durable state."""


class ShareStateShard:
    """Created when the partition opens, usable between `load` and `close`."""

    def __init__(
        self,
        log: RecordLog[ShareEntry],
        *,
        settings: ShareStateSettings,
        clock: Clock,
        budget: ShareStateBudget,
        rewrite_due: Callable[[], None],
    ) -> None:
        self._log = log
        self._settings = settings
        self._clock = clock
        self._rewrite_due = rewrite_due
        self._table = StateTable(budget)
        self._rewrites_begun = 0
        self._rewrite: LogRewrite[ShareEntry] = LogRewrite(
            log,
            self._rewritten,
            log_bytes_min=settings.share_state_rewrite_log_bytes_min,
            ratio=settings.share_state_rewrite_ratio,
        )
        self.is_loaded = False
        self.has_to_forget_topics = True
        """Whether topics may have been deleted since the last check."""

    def __len__(self) -> int:
        return len(self._table)

    @property
    def log_size_bytes(self) -> int:
        """Bytes that the next load reads."""
        return self._log.size_bytes

    def state(self, key: SharePartitionKey) -> ShareSnapshot | None:
        """Return the durable state of a share partition."""
        held = self._table.get(key)
        return None if held is None else held.state

    # --- load and unload

    async def load(self) -> None:
        """Restore from the log.

        Raises:
            S3StreamError: the log cannot be read now.
            RecordLogCorruptError: the log is damaged.
        """
        assert not self.is_loaded
        for held in self._table:
            self._table.remove(held)  # from a load that failed
        async for entry in self._log.replay(lambda: self._clock.sleep(_UNDER_WAY_S)):
            held = self._table.get_or_add(entry.key)
            self._apply(held, entry.value, applied(held.state, entry.value))
        state_bytes = 0
        for number, held in enumerate(self._table, 1):
            state_bytes += self._log.size_of(ShareEntry(held.key, held.state))
            if number % KEYS_PER_STEP == 0:
                await turn()
        self._rewrite.loaded(state_bytes)
        self.is_loaded = True
        self._check_log()

    def close(self, error: ErrorCode) -> Steps[None]:
        """Answer all waiting requests and free memory. No request may follow."""
        self._log.close()
        self._rewrite.stop()
        for number, held in enumerate(self._table, 1):
            _end_write(held, error)
            self._table.remove(held)
            if number % KEYS_PER_STEP == 0:
                yield

    # --- requests

    async def change(self, key: SharePartitionKey, decide: Decide) -> ErrorCode:
        """Decide on a request and write its record; return when the record is durable, or at the timeout.

        Returns:
            The decision's error, or the error of the write. COORDINATOR_NOT_AVAILABLE after the timeout: the
                change may still become durable.
        """
        try:
            async with asyncio.timeout(self._settings.share_state_write_timeout_ms / 1_000):
                return await self._change(key, decide)
        except TimeoutError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def _change(self, key: SharePartitionKey, decide: Decide) -> ErrorCode:
        held = await self._idle(key)
        if self._log.is_closed:
            return ErrorCode.NOT_COORDINATOR
        state = None if held is None else held.state
        change = decide(state)
        if isinstance(change, ErrorCode):
            return change
        held = self._table.get_or_add(key)
        after = applied(state, change)
        assert after is not None
        if len(after.batches) > BATCHES_MAX:
            return ErrorCode.INVALID_REQUEST
        if not self._table.budget.admits(held, after):
            self._drop_if_empty(held)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if isinstance(change, ShareUpdate) and self._needs_snapshot(held):
            change = after = as_snapshot(after, now_ms=self._clock.wall_ms())
        write = self._append(held, change, after)
        # The write ends when it is durable, even if the sender of the request disconnects.
        await asyncio.wait((write,))
        return write.result()

    async def delete(self, key: SharePartitionKey) -> ErrorCode:
        """Write a tombstone, if there is a state; return when it is durable, or at the timeout."""
        try:
            async with asyncio.timeout(self._settings.share_state_write_timeout_ms / 1_000):
                held = await self._idle(key)
                if held is None:
                    return ErrorCode.NOT_COORDINATOR if self._log.is_closed else ErrorCode.NONE
                write = self._append(held, None, None)
                await asyncio.wait((write,))
                return write.result()
        except TimeoutError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def forget_topics(self, is_deleted: Callable[[SharePartitionKey], bool]) -> bool:
        """Delete the states of deleted topics, in turns; return False if a write failed: try again later."""
        deleted: list[SharePartitionKey] = []
        for number, held in enumerate(self._table, 1):
            if is_deleted(held.key):
                deleted.append(held.key)
            if number % KEYS_PER_STEP == 0:
                await turn()
        errors = await bounded_gather(self.delete(key) for key in deleted)
        return not any(errors)

    async def _idle(self, key: SharePartitionKey) -> HeldState | None:
        """Return a share partition when it has no write in flight."""
        while (held := self._table.get(key)) is not None and held.write is not None:
            await asyncio.wait((held.write,))
        return held

    def _append(
        self, held: HeldState, record: Record, after: ShareSnapshot | None
    ) -> asyncio.Future[ErrorCode]:
        assert held.write is None
        held.write = write = asyncio.get_running_loop().create_future()
        self._table.budget.charge(held, after or held.state)
        rewrites = self._rewrites_begun
        self._log.append(
            [ShareEntry(held.key, record)], partial(self._written, held, record, after, rewrites)
        )
        self._check_log()
        return write

    def _written(
        self,
        held: HeldState,
        record: Record,
        after: ShareSnapshot | None,
        rewrites: int,
        error: ErrorCode,
    ) -> None:
        if held not in self._table:
            return  # the shard was closed
        if error is ErrorCode.NONE:
            self._apply(held, record, after)
            if isinstance(record, ShareSnapshot):
                held.rewrites = rewrites
        else:
            self._table.budget.charge(held, held.state)
        _end_write(held, error)
        self._drop_if_empty(held)

    def _apply(self, held: HeldState, record: Record, after: ShareSnapshot | None) -> None:
        held.state = after
        held.updates = held.updates + 1 if isinstance(record, ShareUpdate) else 0
        self._table.budget.charge(held, after)
        if after is None and held.write is None:
            self._table.remove(held)

    def _drop_if_empty(self, held: HeldState) -> None:
        if held.state is None and held.write is None and held in self._table:
            self._table.remove(held)

    # --- snapshots and rewrites

    def _needs_snapshot(self, held: HeldState) -> bool:
        """Return whether the next record must contain the whole state.

        A rewrite skips a share partition with a write in flight, and then trims the log. The write must
        therefore not depend on a snapshot that is older than the beginning of the rewrite.
        """
        is_old = held.rewrites < self._rewrites_begun
        return is_old or held.updates >= self._settings.share_state_updates_per_snapshot

    def _rewritten(self) -> Iterator[ShareEntry | None]:
        now_ms = self._clock.wall_ms()
        for held in self._table:
            if held not in self._table or held.state is None:
                continue
            if held.write is None:
                held.rewrites, held.updates = self._rewrites_begun, 0
            yield ShareEntry(held.key, replace(held.state, write_ms=now_ms))

    @property
    def is_rewrite_due(self) -> bool:
        """Whether the log is too long relative to its state."""
        return self._rewrite.is_due

    async def rewrite(self) -> bool:
        """Write every state again and trim the log; return False if the log was not trimmed."""
        self._rewrites_begun += 1
        return await self._rewrite.write()

    def _check_log(self) -> None:
        if self._rewrite.is_due:
            self._rewrite_due()


def _end_write(held: HeldState, error: ErrorCode) -> None:
    write, held.write = held.write, None
    if write is not None and not write.done():
        write.set_result(error)
