"""A member of a consumer group: it reads its partitions from the committed offsets on, and commits.

The client joins again and again, with either protocol. A membership ends when the client leaves, leaves for a
short time (static members), disappears without a request, or is removed because it was silent too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ponor_kafka.record_batch import split_batches
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.histories.groups import NO_OFFSET, Commit, Delivery, SeenOffset
from ponor_cluster_simulation.workload.connections import GROUP, Connections, NotSentError
from ponor_cluster_simulation.workload.consumer import RETRIABLE as RETRIABLE_READS
from ponor_cluster_simulation.workload.group_membership import (
    FENCED,
    REJOIN,
    ClassicMembership,
    ConsumerMembership,
    Membership,
    now_of,
)
from ponor_cluster_simulation.workload.leaders import Leaders
from ponor_cluster_simulation.workload.shared_group import ANSWER_S_MAX, SESSION_TIMEOUT_MS, SharedGroup

FETCH_VERSION: Final = 12
MEMBER_EPOCH_VERSION: Final = 9
"""Version of OffsetCommit and OffsetFetch with member epochs."""
STEPS_MIN, STEPS_MAX = 3, 20
"""Steps of a membership before the client ends it."""
IDLE_S: Final = 0.5
"""Pause of a member that has nothing to do but to send heartbeats."""
PAUSE_S_MIN: Final = 0.03
VANISHING_ONE_IN: Final = 3
SILENT_ONE_IN: Final = 50
REFUSED: Final = FENCED | REJOIN | {ErrorCode.STALE_MEMBER_EPOCH}
"""Commits and fetches of offsets that the coordinator refuses because of the member or its epoch."""


class GroupMember:
    """One client of the group. Its process never crashes; it disappears by doing nothing."""

    def __init__(self, name: str, shared: SharedGroup, *, is_static: bool) -> None:
        self.name = name
        self._shared = shared
        self._instance_id = f"{name}-instance" if is_static else None
        self._connections = Connections(name, shared.bootstrap)
        self._leaders = Leaders(name, shared.topic, shared.bootstrap)
        self._lives = 0
        self.membership: Membership | None = None
        self.is_finished = False

    @property
    def is_settled(self) -> bool:
        """Whether the member uses what it was assigned, and has committed all it has read."""
        own = self.membership
        return own is not None and own.is_joined and own.positions.keys() == own.used and not own.uncommitted

    @property
    def used(self) -> frozenset[int]:
        """Partitions that the member uses."""
        return frozenset() if self.membership is None else self.membership.used

    async def run(self, runtime: Runtime) -> None:
        """Join, read and leave until everything is judged."""
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
        kind = ClassicMembership if randomness.below(100) < 100 * shared.classic_share else ConsumerMembership
        own = self.membership = kind(
            f"{self.name}.{self._lives}",
            self._instance_id,
            self._connections,
            self._leaders,
            shared,
            self._commit,
        )
        steps = STEPS_MIN + randomness.below(STEPS_MAX - STEPS_MIN)
        while not shared.is_over and (steps > 0 or shared.is_calm):
            steps -= 1
            await own.step(runtime)
            await self._read(runtime, own)
            if not shared.is_calm and randomness.below(SILENT_ONE_IN) == 0:
                await self._be_silent(runtime, own)
            is_idle = shared.is_calm and self.is_settled
            await runtime.clock.sleep(
                IDLE_S if is_idle else randomness.uniform(PAUSE_S_MIN, shared.pause_s_max)
            )
        await self._end(runtime, own)

    async def _be_silent(self, runtime: Runtime, own: Membership) -> None:
        """Send nothing for about a session timeout. The member may be removed without knowing it; it then
        commits first.
        """
        self._shared.states["silent members"] += 1
        await runtime.clock.sleep(runtime.randomness.uniform(0.8, 1.4) * SESSION_TIMEOUT_MS / 1000)
        await self._commit(runtime, own, own.used)

    async def _end(self, runtime: Runtime, own: Membership) -> None:
        """Leave the group, or disappear without a request."""
        if not self._shared.is_over and runtime.randomness.below(VANISHING_ONE_IN) == 0:
            self._shared.states["members that disappeared"] += 1
            own.drop(runtime)
            return
        for_short = self._instance_id is not None and not self._shared.is_over
        await self._commit(runtime, own, own.used)
        while not await own.leave(runtime, for_short=for_short) and self._shared.is_over:
            await runtime.clock.sleep(runtime.randomness.uniform(0.02, 0.1))

    # --- records

    async def _read(self, runtime: Runtime, own: Membership) -> None:
        """Read some records of one partition, and commit in every second step."""
        unlocated = own.used - own.positions.keys()
        if unlocated:
            await self._locate(runtime, own, sorted(unlocated))
        located = sorted(own.positions)
        if located:
            await self._fetch(runtime, own, located[runtime.randomness.below(len(located))])
        if own.uncommitted and (self._shared.is_calm or runtime.randomness.below(2)):
            await self._commit(runtime, own, own.used)

    async def _fetch(self, runtime: Runtime, own: Membership, partition: int) -> None:
        leader = self._leaders.leader_of(partition)
        if leader is None:
            self._leaders.doubt()
            return
        start = own.positions[partition]
        row = FetchPartition(partition=partition, fetch_offset=start, partition_max_bytes=1 << 20)
        topic = FetchTopic(self._shared.topic, partitions=[row])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[topic])
        address = self._leaders.addresses[leader]
        try:
            answer = await self._connections.ask(
                runtime, address, request, FETCH_VERSION, FetchResponse, timeout_s=ANSWER_S_MAX
            )
        except (ConnectionClosedError, NotSentError):
            self._leaders.doubt()
            return
        found = answer.responses[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            assert found.error_code in RETRIABLE_READS, ErrorCode(found.error_code)
            self._leaders.hint(partition, found.current_leader, answer.node_endpoints)
            return
        batches = list(split_batches(memoryview(found.records or b"")))  # type: ignore[arg-type]
        if batches:
            own.positions[partition] = batches[-1].next_offset
            self._shared.history.deliveries.append(
                Delivery(own.member, partition, start, batches[-1].next_offset)
            )

    # --- offsets

    async def _locate(self, runtime: Runtime, own: Membership, partitions: Sequence[int]) -> None:
        """Fetch committed offsets, and continue there."""
        topic = OffsetFetchRequestTopics(self._shared.topic, partition_indexes=partitions)
        group = OffsetFetchRequestGroup(self._shared.group, topics=[topic])
        if isinstance(own, ConsumerMembership):
            group.member_id, group.member_epoch = own.member_id, own.epoch
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        asked_s = now_of(runtime)
        answer = await own.ask(runtime, request, MEMBER_EPOCH_VERSION, OffsetFetchResponse)
        if answer is None:
            return
        (found,) = answer.groups
        rows = [row for topic in found.topics for row in topic.partitions]
        codes = {ErrorCode(found.error_code), *(ErrorCode(row.error_code) for row in rows)}
        if codes != {ErrorCode.NONE}:
            for code in codes - {ErrorCode.NONE} - REFUSED:
                own.retry(code)
            return
        for row in rows:
            seen = SeenOffset(row.partition_index, row.committed_offset, asked_s, now_of(runtime))
            self._shared.history.seen_offsets.append(seen)
            own.positions[row.partition_index] = max(row.committed_offset, 0)
            if row.committed_offset != NO_OFFSET:
                own.committed[row.partition_index] = row.committed_offset

    async def _commit(self, runtime: Runtime, own: Membership, partitions: Iterable[int]) -> None:
        """Commit the positions of partitions, once."""
        offsets = {each: at for each, at in own.uncommitted.items() if each in partitions and at > 0}
        if not offsets:
            return
        asked_s, member = now_of(runtime), own.member
        commits = [Commit(member, partition, offset, asked_s) for partition, offset in offsets.items()]
        self._shared.history.commits += commits
        rows = [OffsetCommitRequestPartition(each, offset) for each, offset in offsets.items()]
        request = OffsetCommitRequest(
            self._shared.group,
            own.epoch,
            own.member_id,
            self._instance_id,
            topics=[OffsetCommitRequestTopic(self._shared.topic, partitions=rows)],
        )
        answer = await own.ask(runtime, request, MEMBER_EPOCH_VERSION, OffsetCommitResponse)
        if answer is None:
            return
        codes = {row.partition_index: ErrorCode(row.error_code) for row in answer.topics[0].partitions}
        for commit in commits:
            self._committed(runtime, own, commit, codes[commit.partition])

    def _committed(self, runtime: Runtime, own: Membership, commit: Commit, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            commit.told_s = now_of(runtime)
            if commit.partition in own.positions:
                own.committed[commit.partition] = commit.offset
        elif code in REFUSED:
            self._shared.states["commits refused"] += 1
            commit.is_refused = True
            own.refused(code)
        else:
            own.retry(code)


async def fetch_committed(runtime: Runtime, connections: Connections, shared: SharedGroup) -> dict[int, int]:
    """Return the committed offsets of all partitions, as an administrator sees them."""
    topic = OffsetFetchRequestTopics(shared.topic, partition_indexes=range(shared.partitions))
    group = OffsetFetchRequestGroup(shared.group, topics=[topic])
    request = OffsetFetchRequest(groups=[group], require_stable=True)
    while True:
        with suppress(ConnectionClosedError, NotSentError):
            answer = await connections.ask_coordinator(
                runtime, GROUP, shared.group, request, MEMBER_EPOCH_VERSION, OffsetFetchResponse
            )
            (found,) = answer.groups
            rows = [row for topic in found.topics for row in topic.partitions]
            if {found.error_code, *(row.error_code for row in rows)} == {ErrorCode.NONE}:
                return {row.partition_index: row.committed_offset for row in rows}
        connections.forget_coordinators()
        await runtime.clock.sleep(runtime.randomness.uniform(0.02, 0.1))
