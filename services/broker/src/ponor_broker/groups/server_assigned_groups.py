"""The groups of a shard whose assignment the coordinator computes: executes their state machines.

An event changes memory when the log accepts its records. A request is answered when they, and all earlier
records of its group, are durable. If an accepted batch fails, memory contains changes that the log does not:
the shard then loads the log again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.turns import Turns, turn

from ponor_broker.coordination.ports import GroupConfigs
from ponor_broker.coordination.record_log import RecordLog
from ponor_broker.coordination.timers import TimerQueue
from ponor_broker.groups.group import Group, ServerAssignedMembership
from ponor_broker.groups.group_actions import GroupActions
from ponor_broker.groups.group_counters import GroupCounters
from ponor_broker.groups.group_table import GroupTable
from ponor_broker.groups.instructions import SetTimer, Timer
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.outcome import GroupOutcome, TimerInstruction
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.record_codec import Entry
from ponor_broker.groups.settings import GroupSettings

RETRY_MS: Final = 1_000
"""Pause before an event of a timer, or a computation, is attempted again after the log refused it."""

WORKING_MAX: Final = 20
"""Groups of one shard and type whose work is in progress. The work of the others waits without a task."""

Spawn: TypeAlias = Callable[[Coroutine[None, None, None], str], "asyncio.Task[None]"]
Work: TypeAlias = Callable[[], Coroutine[Any, Any, bool]]
"""Does a part of a group's work; returns whether the next part may follow now."""


class ShardParts(NamedTuple):
    """The parts of a shard that groups of every type use.

    All shards of a broker share `turns`, so that computations of many groups do not make a turn longer.
    `failed` is called if an accepted batch does not become durable: memory must be loaded again.
    """

    log: RecordLog[Entry]
    table: GroupTable
    actions: GroupActions
    settings: GroupSettings
    clock: Clock
    timers: TimerQueue
    counters: GroupCounters
    turns: Turns
    spawn: Spawn
    failed: Callable[[], None]
    configs: GroupConfigs


class ServerAssignedGroups(ABC):
    """The groups of one type of one shard. A subclass has the requests of this type."""

    def __init__(self, parts: ShardParts) -> None:
        self._parts = parts
        self._table = parts.table
        self._actions = parts.actions
        self._clock = parts.clock
        self._counters = parts.counters
        self._turns = parts.turns
        self._in_flight: dict[Group, asyncio.Future[ErrorCode]] = {}
        """The newest write in flight of each group."""
        self._waiting: set[asyncio.Future[ErrorCode]] = set()
        self._working: dict[Group, asyncio.Task[None]] = {}
        self._postponed: dict[Group, ServerAssignedMembership] = {}
        """Groups whose work waits until that of others has ended."""

    @abstractmethod
    def _next_work(self, group: Group) -> Work | None:
        """Return the work of a group that is too large for an event; None if none is due."""

    @abstractmethod
    def _count(self, entries: Sequence[Any]) -> None:
        """Count what the records of an accepted event show."""

    def _stored(self, entries: Sequence[Any]) -> Sequence[Entry]:
        """Return an event's records as the log keeps them."""
        return entries

    # --- events

    def _run(self, group: Group, outcome: GroupOutcome[Any, Any]) -> ErrorCode:
        """Write the records of an event; then set its timers, or undo it if the log refuses."""
        membership = group.server_assigned
        assert membership is not None
        entries = outcome.draft.entries
        error = self._append(group, self._stored(entries)) if entries else ErrorCode.NONE
        if error is ErrorCode.NONE:
            self._accepted(group, outcome)
        else:
            membership.take_back(outcome)
        return error

    def _accepted(self, group: Group, outcome: GroupOutcome[Any, Any]) -> None:
        self._set_timers(group, outcome.timers)
        if outcome.draft.entries:
            self._count(outcome.draft.entries)
            self._actions.recount(group)
        self._work_if_due(group)

    def _append(self, group: Group, entries: Sequence[Entry]) -> ErrorCode:
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        error = self._parts.log.try_append(entries, partial(self._written, group, done))
        if error is ErrorCode.NONE:
            self._in_flight[group] = done
        # As in Kafka, members do not get MESSAGE_TOO_LARGE: they cannot make the records smaller.
        return ErrorCode.UNKNOWN_SERVER_ERROR if error is ErrorCode.MESSAGE_TOO_LARGE else error

    def _written(self, group: Group, done: asyncio.Future[ErrorCode], error: ErrorCode) -> None:
        if self._in_flight.get(group) is done:
            del self._in_flight[group]
        done.set_result(error)
        if error is not ErrorCode.NONE and not self._parts.log.is_closed:
            self._parts.failed()

    async def _durable(self, group: Group) -> ErrorCode:
        """Wait until all records of a group are durable; return the error if they are not in time."""
        write = self._in_flight.get(group)
        if write is None:
            return ErrorCode.NONE
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(error: ErrorCode) -> None:
            if not outcome.done():
                outcome.set_result(error)

        write.add_done_callback(lambda done: settle(done.result()))
        self._waiting.add(outcome)
        timers, timeout_ms = self._parts.timers, self._parts.settings.coordinator_write_timeout_ms
        key = (self, outcome)
        timers.set(key, timeout_ms, partial(settle, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        try:
            return await outcome
        finally:
            timers.cancel(key)
            self._waiting.discard(outcome)

    def make_classic(self, group: Group) -> ErrorCode:
        """Make an empty group a classic one, because a classic member joins."""
        assert group.server_assigned is not None
        if group.membership.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if group.membership.state is not GroupState.EMPTY:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        tombstones = list(group.server_assigned.tombstones())
        error = self._append(group, tombstones) if tombstones else ErrorCode.NONE
        if error is ErrorCode.NONE:
            self._retire(group, tombstones)
            group.membership = Membership(self._parts.settings)
            self._actions.recount(group)
        return error

    def _retire(self, group: Group, tombstones: Sequence[Any]) -> None:
        """End a group that becomes a classic one."""
        assert group.server_assigned is not None
        self.unload(group)
        # A rewrite of the log may be iterating over the contents, and must not write them again.
        for entry in tombstones:
            group.server_assigned.contents.put(entry)

    # --- timers

    def _set_timers(self, group: Group, instructions: Sequence[TimerInstruction]) -> None:
        timers = self._parts.timers
        for instruction in instructions:
            key = (self, group, instruction.timer)
            if isinstance(instruction, SetTimer):
                timers.set(key, instruction.delay_ms, partial(self._fired, group, instruction.timer))
            else:
                timers.cancel(key)

    def _fired(self, group: Group, timer: Timer) -> None:
        assert group.server_assigned is not None
        error = self._run(group, group.server_assigned.timer_fired(timer, self._clock.wall_ms()))
        if error is not ErrorCode.NONE and not self._parts.log.is_closed:
            self._set_timers(group, [SetTimer(timer, RETRY_MS)])

    # --- work in steps

    def _work_if_due(self, group: Group) -> None:
        if group in self._working or self._parts.log.is_closed:
            return
        work = self._next_work(group)
        membership = group.server_assigned
        assert membership is not None
        if work is not None and len(self._working) < WORKING_MAX:
            self._working[group] = self._parts.spawn(self._work(group, work), "target of a group")
        elif work is not None:
            self._postponed[group] = membership

    async def _work(self, group: Group, work: Work | None) -> None:
        membership = group.membership
        try:
            while work is not None and await work():
                is_same = group.membership is membership and group in self._table
                work = self._next_work(group) if is_same else None
        finally:
            self._working.pop(group, None)
            self._begin_postponed()

    def _begin_postponed(self) -> None:
        while self._postponed and len(self._working) < WORKING_MAX and not self._parts.log.is_closed:
            group = next(iter(self._postponed))
            if group.membership is self._postponed.pop(group) and group in self._table:
                self._work_if_due(group)

    async def _install(
        self,
        group: Group,
        membership: ServerAssignedMembership,
        parts: Iterator[GroupOutcome[Any, Any]],
        retry: Sequence[TimerInstruction],
    ) -> bool:
        """Write the parts of a new target; set the timers of `retry` if the log refuses a part.

        The group may have another membership by now, or be deleted.
        """
        for part in parts:
            if group.membership is not membership:
                membership.take_back(part)
                return False
            # Records after the tombstones would restore a deleted group. The deletion may still fail.
            if membership.state is GroupState.DEAD:
                membership.take_back(part)
                self._set_timers(group, retry)
                return False
            if self._run(group, part) is not ErrorCode.NONE:
                self._set_timers(group, retry)
                return False
            await turn()
        return True

    # --- load and unload

    def restored(self, group: Group) -> None:
        """Start the timers of a group whose records are restored."""
        assert group.server_assigned is not None
        group.durable = None
        self._set_timers(group, group.server_assigned.restored())
        self._actions.recount(group)

    def unload(self, group: Group) -> None:
        """Cancel the timers of a group."""
        assert group.server_assigned is not None
        self._set_timers(group, group.server_assigned.unloaded())

    def close(self, error: ErrorCode) -> None:
        """Answer waiting requests, and stop the work."""
        self._postponed.clear()
        for work in self._working.values():
            work.cancel()
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_result(error)
