"""Execution of the state machines' instructions for a shard's groups: answers, timers, writes.

Every change is one synchronous step. Writes complete in the order of the log, so memory changes in this
order. A client waits for a write only for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.turns import Steps

from ponor_broker.coordination.record_log import RecordLog
from ponor_broker.coordination.timers import TimerQueue
from ponor_broker.coordination.transactional_append import TransactionalProducer
from ponor_broker.groups.group import Group
from ponor_broker.groups.group_counters import CLASSIC_TYPE, GroupCounters
from ponor_broker.groups.group_table import GroupTable
from ponor_broker.groups.instructions import (
    Answer,
    AnswerBody,
    CancelTimer,
    Instruction,
    SetTimer,
    Timer,
    WriteGroup,
)
from ponor_broker.groups.member import RequestId
from ponor_broker.groups.record_codec import Entry
from ponor_broker.groups.records import GroupEntry, GroupKey, GroupRecord
from ponor_broker.groups.settings import GroupSettings


class GroupActions:
    """The actions of one shard."""

    def __init__(
        self,
        log: RecordLog[Entry],
        table: GroupTable,
        *,
        settings: GroupSettings,
        clock: Clock,
        timers: TimerQueue,
        counters: GroupCounters,
    ) -> None:
        self._log = log
        self._table = table
        self._settings = settings
        self._clock = clock
        self._timers = timers
        self._counters = counters
        self._last_request = 0
        self._answers: dict[RequestId, asyncio.Future[AnswerBody]] = {}
        self._writes = 0

    @property
    def waiting_count(self) -> int:
        """Number of requests without an answer."""
        return len(self._answers)

    def open_request(self) -> tuple[RequestId, asyncio.Future[AnswerBody]]:
        """Return a number for a new request, and the future of its answer. A member has at most one
        JoinGroup and one SyncGroup waiting; other requests are answered within the call.
        """
        self._last_request += 1
        request = RequestId(self._last_request)
        answer = self._answers[request] = asyncio.get_running_loop().create_future()
        return request, answer

    def run(self, group: Group, instructions: list[Instruction]) -> None:
        """Execute instructions in order, then update the group's budget."""
        for instruction in instructions:
            match instruction:
                case Answer(request, body):
                    answer = self._answers.pop(request)
                    if not answer.done():  # otherwise the client has disconnected
                        answer.set_result(body)
                case SetTimer(timer, delay_ms):
                    self._timers.set((self, group, timer), delay_ms, partial(self._timer_fired, group, timer))
                case CancelTimer(timer):
                    self._timers.cancel((self, group, timer))
                case WriteGroup(write_id, record):
                    self._keep(group, write_id, record)
        self.recount(group)

    def recount(self, group: Group) -> None:
        """Update the group's budget after a change."""
        if group in self._table:
            self._table.budget.recount(group)

    def _timer_fired(self, group: Group, timer: Timer) -> None:
        assert group.classic is not None
        self.run(group, group.classic.timer_fired(timer))

    def _keep(self, group: Group, write_id: int, record: GroupRecord) -> None:
        stamped = replace(record, state_timestamp_ms=self._clock.wall_ms())
        group.quiet_since_ms = stamped.state_timestamp_ms
        membership = group.classic
        assert membership is not None
        key = (self, group, write_id)

        def tell(error: ErrorCode) -> None:
            # Called at the timeout and with the outcome of the write. The state machine ignores the later
            # call. A consumer group may have replaced the group, if it was empty.
            if group.membership is membership:
                self.run(group, membership.written(write_id, error))

        def ended(error: ErrorCode) -> None:
            self._timers.cancel(key)
            if error is ErrorCode.NONE and group.membership is membership:
                group.durable = stamped
                self._counters.rebalanced(CLASSIC_TYPE)
            # As in Kafka, members do not get MESSAGE_TOO_LARGE: they cannot make the record smaller.
            tell(ErrorCode.UNKNOWN_SERVER_ERROR if error is ErrorCode.MESSAGE_TOO_LARGE else error)

        timeout_ms = self._settings.coordinator_write_timeout_ms
        self._timers.set(key, timeout_ms, partial(tell, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        self._log.append([GroupEntry(GroupKey(group.group_id), stamped)], ended)

    async def write(
        self,
        entries: Sequence[Entry],
        apply: Callable[[ErrorCode], None],
        producer: TransactionalProducer | None = None,
        *,
        steps: Callable[[], Steps[None]] | None = None,
    ) -> ErrorCode:
        """Append one batch and wait for its outcome until the timeout. Apply the outcome to memory whenever
        it arrives; before that, run `steps` if the batch is durable.

        Returns:
            The outcome, or COORDINATOR_NOT_AVAILABLE after the timeout, as in Kafka: clients look up the
                coordinator and retry. The entries may still become durable, and be applied, later.
        """
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(error: ErrorCode) -> None:
            if not answer.done():
                answer.set_result(error)

        def ended(error: ErrorCode) -> None:
            apply(error)
            settle(error)

        self._writes += 1
        key = (self, "write", self._writes)
        timeout_ms = self._settings.coordinator_write_timeout_ms
        self._timers.set(key, timeout_ms, partial(settle, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        self._log.append(entries, ended, producer, apply=steps)
        try:
            return await answer
        finally:
            self._timers.cancel(key)
