"""A member of a streams group: it joins, owns and revokes tasks, and leaves (KIP-1071). It executes no tasks.

The client joins again and again. A membership ends when the client leaves, disappears without a request, is
removed because it was silent too long, or gets no answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestTaskIds,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.groups import GroupHistory
from ponor_cluster_simulation.workload.connections import GROUP, Connections, NotSentError
from ponor_cluster_simulation.workload.group_member import (
    IDLE_S,
    PAUSE_S_MIN,
    SILENT_ONE_IN,
    STEPS_MAX,
    STEPS_MIN,
    VANISHING_ONE_IN,
)
from ponor_cluster_simulation.workload.group_membership import (
    FENCED,
    LATE_STEPS_MAX,
    LEAVING,
    now_of,
)
from ponor_cluster_simulation.workload.producer_session import RETRIABLE
from ponor_cluster_simulation.workload.shared_group import (
    ANSWER_S_MAX,
    REBALANCE_TIMEOUT_MS,
    SAFE_S,
    SESSION_TIMEOUT_MS,
    STALE_S,
)

SUBTOPOLOGY: Final = "0"


@dataclass(slots=True)
class SharedStreamsGroup:
    """What the members of the streams group of one run share. A task is a partition of the topic.

    Attributes:
        is_calm: the faults are over: no member leaves any more.
        is_over: everything is judged: the members leave.
    """

    group: str
    topic: str
    partitions: int
    bootstrap: Sequence[str]
    pause_s_max: float
    history: GroupHistory = field(default_factory=lambda: GroupHistory(STALE_S))
    states: Counter[str] = field(default_factory=Counter)
    is_calm: bool = False
    is_over: bool = False


class StreamsMember:
    """One client of the group. Its process never crashes; it disappears by doing nothing.

    Attributes:
        member: name of the membership in the history.
        used: tasks that the member owns.
    """

    def __init__(self, name: str, shared: SharedStreamsGroup) -> None:
        self.name = name
        self._shared = shared
        self._connections = Connections(name, shared.bootstrap)
        self._lives = 0
        self.is_finished = False
        self._begin("")

    def _begin(self, member_id: str) -> None:
        self._lives += 1
        self.member = f"{self.name}.{self._lives}"
        self._member_id = member_id
        self._epoch = 0
        self.used: frozenset[int] = frozenset()
        self._wanted: frozenset[int] | None = None
        self._reported: frozenset[int] = frozenset()
        self._delay = 0
        """Heartbeats that the member still sends before it revokes."""
        self._safe_until_s = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether the member owns what it was assigned, and has reported it."""
        return self._epoch > 0 and self._wanted is None and self._reported == self.used

    async def run(self, runtime: Runtime) -> None:
        """Join, own tasks and leave until everything is judged."""
        try:
            while not self._shared.is_over:
                await self._live(runtime)
        finally:
            self.is_finished = True
            await self._connections.close()

    async def _live(self, runtime: Runtime) -> None:
        """Join, and be a member for some steps, or until the end of the run."""
        randomness, shared = runtime.randomness, self._shared
        self._begin(str(randomness.uuid()))
        steps = STEPS_MIN + randomness.below(STEPS_MAX - STEPS_MIN)
        while not shared.is_over and (steps > 0 or shared.is_calm):
            steps -= 1
            self._delay -= 1
            if self._delay < 0:
                self._apply(runtime)
            if not await self._heartbeat(runtime):
                self._use(frozenset(), now_of(runtime))
                return
            if not shared.is_calm and randomness.below(SILENT_ONE_IN) == 0:
                shared.states["silent members"] += 1
                await runtime.clock.sleep(randomness.uniform(0.8, 1.4) * SESSION_TIMEOUT_MS / 1000)
            is_idle = shared.is_calm and self.is_settled
            await runtime.clock.sleep(
                IDLE_S if is_idle else randomness.uniform(PAUSE_S_MIN, shared.pause_s_max)
            )
        await self._end(runtime)

    async def _end(self, runtime: Runtime) -> None:
        """Leave the group, or disappear without a request."""
        self._use(frozenset(), now_of(runtime))
        if not self._shared.is_over and runtime.randomness.below(VANISHING_ONE_IN) == 0:
            self._shared.states["members that disappeared"] += 1
            return
        self._epoch = LEAVING
        while not await self._heartbeat(runtime) and self._shared.is_over:
            await runtime.clock.sleep(runtime.randomness.uniform(0.02, 0.1))

    # --- heartbeats

    async def _heartbeat(self, runtime: Runtime) -> bool:
        """Join, continue or leave; False if the membership has ended, or a leave has to be repeated.

        The membership also ends without an answer: a join may arrive late and would report that the member
        has no tasks, and an answer with tasks is not repeated.
        """
        sent_s, sent, request = now_of(runtime), self.used, self._request()
        try:
            answer = await self._connections.ask_coordinator(
                runtime,
                GROUP,
                self._shared.group,
                request,
                0,
                StreamsGroupHeartbeatResponse,
                timeout_s=ANSWER_S_MAX,
            )
        except (ConnectionClosedError, NotSentError):
            self._connections.forget_coordinators()
            return False
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            if self._epoch != LEAVING:
                self._reported = sent if request.active_tasks is not None else self._reported
                self._take(runtime, answer, sent_s)
            return True
        if code in FENCED:
            self._note_fence(runtime, code)
            return self._epoch == LEAVING
        assert code in RETRIABLE, f"{self.name}: {code.name}"
        self._connections.forget_coordinators()
        return self._epoch != LEAVING

    def _request(self) -> StreamsGroupHeartbeatRequest:
        request = StreamsGroupHeartbeatRequest(self._shared.group, self._member_id, self._epoch)
        if self._epoch == LEAVING:
            return request
        if self._epoch == 0:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.process_id = self._member_id
            request.topology = Topology(0, [Subtopology(SUBTOPOLOGY, [self._shared.topic])])
        if self._epoch == 0 or self._reported != self.used:
            row = StreamsGroupHeartbeatRequestTaskIds(SUBTOPOLOGY, sorted(self.used))
            request.active_tasks = [row] if self.used else []
            request.standby_tasks = request.warmup_tasks = []
        return request

    def _take(self, runtime: Runtime, answer: StreamsGroupHeartbeatResponse, sent_s: float) -> None:
        states = self._shared.states
        states["joins"] += self._epoch == 0
        states["heartbeats answered"] += 1
        assert answer.member_epoch >= self._epoch, f"{self.name}: the epoch fell to {answer.member_epoch}"
        self._epoch = answer.member_epoch
        self._safe_until_s = sent_s + SAFE_S
        self._shared.history.confirmed(self.member, now_of(runtime), self._safe_until_s)
        if answer.active_tasks is not None:
            self._wanted = frozenset(index for row in answer.active_tasks for index in row.partitions)
            self._delay = runtime.randomness.below(2) * runtime.randomness.below(LATE_STEPS_MAX + 1)
            if self.used <= self._wanted:
                self._apply(runtime)

    def _note_fence(self, runtime: Runtime, code: ErrorCode) -> None:
        is_expected = self._wanted is not None or now_of(runtime) >= self._safe_until_s
        if self._epoch > 0:
            self._shared.states["members fenced"] += 1
            if not is_expected:
                self._shared.history.fenced.append(f"{self.member} at {now_of(runtime):.3f} s: {code.name}")

    # --- tasks

    def _apply(self, runtime: Runtime) -> None:
        """Revoke and begin to own tasks, as the newest assignment requires."""
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._use(wanted, now_of(runtime))

    def _use(self, wanted: frozenset[int], now_s: float) -> None:
        history, states = self._shared.history, self._shared.states
        history.gave_up(self.member, self.used - wanted, now_s)
        history.got(self.member, wanted - self.used, now_s, self._safe_until_s)
        states["tasks assigned"] += len(wanted - self.used)
        states["tasks revoked"] += len(self.used - wanted)
        self.used = wanted
