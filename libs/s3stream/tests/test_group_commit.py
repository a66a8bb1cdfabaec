"""Group commit over a log that is full or fails at any entry: every caller gets one result, in
order, and nothing stays pending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_runtime.system import SystemClock
from s3stream.errors import StorageFailedError, WalFullError
from s3stream.group_commit import GroupCommit, PendingAppend
from s3stream.open_stream import OpenStream
from s3stream.records import StreamRecord
from s3stream.wal import WriteAheadLog

APPENDS = 12
OnDone = Callable[[BaseException | None], None]


class FaultyLog:
    """Accepts `queue_max` entries at a time. Entry number `fails_at` and all later ones fail, at
    their append or at their sync.
    """

    def __init__(self, *, gathers: bool, queue_max: int, fails_at: int | None, at_sync: bool) -> None:
        self.gathers = gathers
        self.room_bytes = 1 << 20
        self.queue: deque[OnDone] = deque()
        self._queue_max = queue_max
        self._fails_at = fails_at
        self._at_sync = at_sync
        self._taken = self._synced = 0

    def append(self, buffers: Sequence[Buffer], on_durable: OnDone) -> int:
        if len(self.queue) >= self._queue_max:
            raise WalFullError("full")
        if not self._at_sync and self._fails_at is not None and self._taken >= self._fails_at:
            raise StorageFailedError("failed")
        self.queue.append(on_durable)
        self._taken += 1
        return self._taken

    def hurry(self) -> None:
        pass

    def sync_one(self) -> None:
        fails = self._at_sync and self._fails_at is not None and self._synced >= self._fails_at
        self._synced += 1
        self.queue.popleft()(OSError("failed") if fails else None)


class Told:
    """Record the results of callers in order."""

    def __init__(self) -> None:
        self.durable: list[int] = []
        self.failed: list[int] = []

    def on_durable(self, appends: list[PendingAppend], sequence: int, started_ns: int) -> None:
        self.durable += [record.base_offset for _, record, _, _ in appends]

    def on_wal_failed(self, appends: list[PendingAppend], error: BaseException) -> None:
        self.failed += [record.base_offset for _, record, _, _ in appends]


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("queue_max", [1, 2, 100])
@pytest.mark.parametrize("at_sync", [False, True])
@pytest.mark.parametrize("fails_at", [None, *range(APPENDS)])
async def test_every_callback_runs_once_and_in_order(
    fails_at: int | None, *, gathers: bool, queue_max: int, at_sync: bool
) -> None:
    log = FaultyLog(gathers=gathers, queue_max=queue_max, fails_at=fails_at, at_sync=at_sync)
    told = Told()
    commit = GroupCommit(cast(WriteAheadLog, log), told, SystemClock(), entry_bytes_max=30)
    stream: Any = object()
    cuts: list[int] = []
    for number in range(APPENDS):
        record = StreamRecord(StreamId(1), StreamEpoch(0), number, 1, -1, b"x")
        commit.add(cast(OpenStream, stream), record, 20, lambda _: None)  # two do not fit into one entry
        if number % 3 == 2:
            commit.cut(lambda: cuts.append(told.durable[-1]))
        if number % 4 == 0:
            await asyncio.sleep(0)
    while log.queue or not commit.idle:
        await asyncio.sleep(0)
        if log.queue:
            log.sync_one()
    assert told.durable + told.failed == list(range(APPENDS))
    assert commit.idle
    if fails_at is None:
        assert not told.failed
        assert cuts == [2, 5, 8, 11]
