"""Consensus of one: what is durable on this disk is committed.

What lives here: `Consensus` for a cluster with a single voter. It leads always, in term 1. A failed write or sync ends the process, because nobody
can tell afterwards what the disk holds.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ponor_runtime.tasks import FailStop

from ponor_controller.consensus.ports import CommitListener, LogEntry
from ponor_controller.consensus.record_log import RecordLog

SINGLE_VOTER_TERM = 1


class SingleVoter:
    """`Consensus` on one record log."""

    def __init__(self, log: RecordLog, fail_stop: FailStop) -> None:
        self._log = log
        self._fail_stop = fail_stop
        self._listeners: list[CommitListener] = []
        self._pending: deque[tuple[LogEntry, asyncio.Future[None]]] = deque()

    @property
    def is_leader(self) -> bool:
        return True

    @property
    def term(self) -> int:
        return SINGLE_VOTER_TERM

    def on_commit(self, listener: CommitListener) -> None:
        self._listeners.append(listener)

    def propose(self, entry: LogEntry) -> None:
        durable = self._log.append(entry)
        self._pending.append((entry, durable))
        durable.add_done_callback(self._commit)

    def _commit(self, _: asyncio.Future[None]) -> None:
        """Commit the run of durable entries: futures complete in order, but nothing says in which order their callbacks run."""
        committed: list[LogEntry] = []
        while self._pending and self._pending[0][1].done():
            entry, durable = self._pending.popleft()
            error = durable.exception()
            if error is not None:
                self._fail_stop("the record log", error)
                return
            committed.append(entry)
        if not committed:
            return
        try:
            for listener in self._listeners:
                listener(committed)
        except Exception as error:  # noqa: BLE001 -- whatever it is: what is committed must be applied, or the process ends
            self._fail_stop(f"applying batch {committed[0].index} and later", error)
