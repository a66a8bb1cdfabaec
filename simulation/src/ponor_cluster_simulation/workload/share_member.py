"""A member of a share group: it acquires records, and accepts, releases, rejects and renews them.

The client joins again and again. A membership ends when the client leaves, disappears without a request (its
connections end, or stay open), or is removed because it was silent too long.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
)
from ponor_kafka.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.workload.connections import GROUP, Connections, NotSentError
from ponor_cluster_simulation.workload.group_member import (
    IDLE_S,
    PAUSE_S_MIN,
    SILENT_ONE_IN,
    STEPS_MAX,
    STEPS_MIN,
    VANISHING_ONE_IN,
)
from ponor_cluster_simulation.workload.group_membership import FENCED
from ponor_cluster_simulation.workload.leaders import Leaders
from ponor_cluster_simulation.workload.producer_session import RETRIABLE
from ponor_cluster_simulation.workload.share_sessions import SharedShareGroup, ShareSessions
from ponor_cluster_simulation.workload.shared_group import JOIN_S_MAX, SESSION_TIMEOUT_MS

LEAVING: Final = -1
SLOW_ONE_IN: Final = 8


class ShareMember:
    """One client of the group. Its process never crashes; it disappears by doing nothing."""

    def __init__(self, name: str, shared: SharedShareGroup) -> None:
        self.name = name
        self._shared = shared
        self._connections = Connections(name, shared.bootstrap)
        self._leaders = Leaders(name, shared.topic, shared.bootstrap)
        self._member_id = ""
        self._epoch = 0
        self._is_full = True
        self._assigned: frozenset[int] = frozenset()
        self._lives = 0
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Join, acquire records and leave until everything is judged."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leaders.renew(runtime, lambda: self.is_finished))
            try:
                while not self._shared.is_over:
                    await self._live(runtime)
            finally:
                self.is_finished = True
                await self._connections.close()

    async def _live(self, runtime: Runtime) -> None:
        """Join, and be a member for some steps, or until the end of the run."""
        randomness, shared = runtime.randomness, self._shared
        self._lives += 1
        if not self._member_id or randomness.below(2):
            self._member_id = str(randomness.uuid())
        self._epoch, self._assigned, self._is_full = 0, frozenset(), True
        sessions = ShareSessions(
            f"{self.name}.{self._lives}", self._member_id, self._connections, self._leaders, shared
        )
        steps = STEPS_MIN + randomness.below(STEPS_MAX - STEPS_MIN)
        while not shared.is_over and (steps > 0 or shared.is_calm):
            steps -= 1
            if not await self._heartbeat(runtime):
                sessions.drop()
                return
            if self._leaders.topic_id is not None:
                await sessions.step(runtime, self._assigned)
            if not shared.is_calm:
                await self._be_slow(runtime)
            is_idle = shared.is_calm and not sessions.held
            await runtime.clock.sleep(
                IDLE_S if is_idle else randomness.uniform(PAUSE_S_MIN, shared.pause_s_max)
            )
        await self._end(runtime, sessions)

    async def _be_slow(self, runtime: Runtime) -> None:
        """Sometimes send nothing for about a session timeout, or for as long as a lock lasts. The member may
        lose its records without knowing it; it acknowledges them later.
        """
        randomness = runtime.randomness
        if randomness.below(SILENT_ONE_IN) == 0:
            self._shared.states["silent members"] += 1
            await runtime.clock.sleep(randomness.uniform(0.8, 1.4) * SESSION_TIMEOUT_MS / 1000)
        elif randomness.below(SLOW_ONE_IN) == 0:
            await runtime.clock.sleep(randomness.uniform(0.5, 1.5) * self._shared.history.lock_s)

    async def _end(self, runtime: Runtime, sessions: ShareSessions) -> None:
        """Leave the group, or disappear without a request."""
        if not self._shared.is_over and runtime.randomness.below(VANISHING_ONE_IN) == 0:
            self._shared.states["members that disappeared"] += 1
            sessions.drop()
            if runtime.randomness.below(2):
                await self._connections.close()
            return
        await sessions.close(runtime)
        self._epoch = LEAVING
        while not await self._heartbeat(runtime) and self._shared.is_over:
            await runtime.clock.sleep(runtime.randomness.uniform(0.02, 0.1))

    async def _heartbeat(self, runtime: Runtime) -> bool:
        """Join, continue or leave; False if the membership has ended, or a leave has to be repeated."""
        request = ShareGroupHeartbeatRequest(
            self._shared.group,
            self._member_id,
            self._epoch,
            subscribed_topic_names=[self._shared.topic] if self._is_full else None,
        )
        try:
            answer = await self._connections.ask_coordinator(
                runtime,
                GROUP,
                self._shared.group,
                request,
                1,
                ShareGroupHeartbeatResponse,
                timeout_s=JOIN_S_MAX,
            )
        except (ConnectionClosedError, NotSentError):
            self._is_full = True  # the answer may have had an assignment
            self._connections.forget_coordinators()
            return self._epoch != LEAVING
        code = ErrorCode(answer.error_code)
        if code in FENCED:
            self._shared.states["members fenced"] += self._epoch > 0
            return self._epoch == LEAVING
        if code is not ErrorCode.NONE:
            assert code in RETRIABLE, f"{self.name}: {code.name}"
            self._connections.forget_coordinators()
            return self._epoch != LEAVING
        if self._epoch != LEAVING:
            self._take(answer)
        return True

    def _take(self, answer: ShareGroupHeartbeatResponse) -> None:
        self._shared.states["joins"] += self._epoch == 0
        assert answer.member_epoch >= self._epoch, f"{self.name}: the epoch fell to {answer.member_epoch}"
        self._epoch, self._is_full = answer.member_epoch, False
        if answer.assignment is not None:
            self._assigned = frozenset(
                index for row in answer.assignment.topic_partitions for index in row.partitions
            )


async def fetch_lags(runtime: Runtime, connections: Connections, shared: SharedShareGroup) -> dict[int, int]:
    """Return the lags of all share partitions, as an administrator sees them: records that are not final."""
    topic = DescribeShareGroupOffsetsRequestTopic(shared.topic, list(range(shared.partitions)))
    group = DescribeShareGroupOffsetsRequestGroup(shared.group, [topic])
    request = DescribeShareGroupOffsetsRequest([group])
    while True:
        with suppress(ConnectionClosedError, NotSentError):
            answer = await connections.ask_coordinator(
                runtime, GROUP, shared.group, request, 1, DescribeShareGroupOffsetsResponse
            )
            (found,) = answer.groups
            rows = [row for topic in found.topics for row in topic.partitions]
            if {found.error_code, *(row.error_code for row in rows)} == {ErrorCode.NONE}:
                return {row.partition_index: row.lag for row in rows}
        connections.forget_coordinators()
        await runtime.clock.sleep(runtime.randomness.uniform(0.05, 0.2))
