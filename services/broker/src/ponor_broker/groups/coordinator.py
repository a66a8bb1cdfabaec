"""The group coordinator of one broker: finds the shard of a group and runs the background work of all shards.

The entry point for handlers. It checks the parts of a request that do not depend on the state of a group
(ids, bounds), and assigns member ids. `coordination/shards.py` loads and unloads shards and refuses requests
for groups that another broker coordinates; `shard.py` handles the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_runtime.runtime import Runtime
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.ports import (
    GroupConfigs,
    InternalPartition,
    InternalPartitions,
    InternalTopicCreator,
    TopicDirectory,
    no_group_configs,
)
from ponor_broker.coordination.record_format import fits_record
from ponor_broker.coordination.record_log import RecordLog, completion_budget
from ponor_broker.coordination.shards import RETRY_S, ROWS_PER_STEP, BrokerPorts, CoordinatedTopic, Shards
from ponor_broker.coordination.share_persister import SharePersister
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest
from ponor_broker.groups.consumer.membership import ConsumerMembership
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.group import Group, GroupDescription, GroupListing
from ponor_broker.groups.group_counters import GroupCounters
from ponor_broker.groups.group_table import GroupBudget
from ponor_broker.groups.instructions import JoinAnswer, LeaveAnswer, SyncAnswer
from ponor_broker.groups.member import PROTOCOLS_MAX
from ponor_broker.groups.offset_access import refusal_of_fetch
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.record_codec import CODEC
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.groups.shard import GroupShard
from ponor_broker.groups.share.membership import ShareMembership
from ponor_broker.groups.share_groups import ShareGroups
from ponor_broker.groups.streams.events import StreamsAnswer, StreamsHeartbeat
from ponor_broker.groups.streams.membership import StreamsMembership
from ponor_broker.groups.subscribable_topics import SubscribableTopics
from ponor_broker.serving import Serving

_MEMBER_ID_PREFIX_CHARS_MAX = 255
_LEAVING_PER_EVENT: Final = 200
"""Members that leave a consumer group with one batch of records: about 7 ms."""


def _keep() -> None:
    """Keep the request in memory while it waits: the default for `free`."""


class GroupCoordinator:
    """The coordinator; call `start` before partitions open, `close` before they close."""

    def __init__(
        self,
        partitions: InternalPartitions,
        creator: InternalTopicCreator,
        topics: TopicDirectory,
        serving: Serving,
        *,
        node_id: int,
        runtime: Runtime,
        settings: GroupSettings,
        persister: SharePersister | None = None,
        group_configs: GroupConfigs = no_group_configs,
    ) -> None:
        """Without a persister, requests of share groups are not served."""
        self._topics = topics
        self.persister: Final = persister
        self._group_configs = group_configs
        self._creator = creator
        self._subscribable = SubscribableTopics(topics)
        self._runtime = runtime
        self._settings = settings
        topic = CoordinatedTopic(
            OFFSETS_TOPIC, "groups", settings.offsets_topic_partitions, settings.coordinator_wait_ms_max
        )
        ports = BrokerPorts(partitions, creator, topics, serving, node_id, runtime)
        self.shards: Final = Shards(topic, ports, create=self._new_shard, loaded=self._shard_loaded)
        self._completions = completion_budget(runtime.clock)
        self._turns = Turns()
        self._rewrite_due = asyncio.Event()
        self._topics_deleted = asyncio.Event()
        self.budget = GroupBudget(settings, runtime.telemetry.counter("ponor_group_refusals_total"))
        self._counters = GroupCounters(runtime.telemetry)
        self._expired = runtime.telemetry.counter("ponor_group_offsets_expired_total")
        self._rewrites = runtime.telemetry.counter("ponor_group_log_rewrites_total")

    @property
    def settings(self) -> GroupSettings:
        """Bounds, for handlers."""
        return self._settings

    def heartbeat_interval_ms(self, kind: str, group_id: str) -> int:
        """Return the interval at which the members of a group send heartbeats. `kind` is the first word of
        the names of the group's configs.
        """
        default: int = getattr(self._settings, f"group_{kind}_heartbeat_interval_ms")
        return int(self._group_configs(group_id).get(f"{kind}.heartbeat.interval.ms", default))

    # --- life

    def start(self) -> None:
        """Follow the partitions of `__consumer_offsets` that open and close here."""
        self.shards.start()
        tasks = self.shards.tasks
        tasks.spawn(self._expire_now_and_then(), "group expiry")
        # One log at a time, and one batch after the other: commits use the same disk.
        tasks.spawn(self._whenever(self._rewrite_due, self._shorten_log), "group log rewrites")
        forget = self._whenever(self._topics_deleted, self._forget_deleted_topics)
        tasks.spawn(forget, "offsets of deleted topics")
        telemetry, budget = self._runtime.telemetry, self.budget
        for kind in budget.by_kind:
            count = partial(budget.by_kind.__getitem__, kind)
            telemetry.gauge("ponor_groups", count, type=kind[0], state=kind[1])
        telemetry.gauge("ponor_group_members", lambda: budget.members)
        telemetry.gauge("ponor_group_offsets", lambda: budget.offsets)
        telemetry.gauge("ponor_groups_memory_bytes", lambda: budget.size_bytes)
        shards = self.shards.by_index
        telemetry.gauge("ponor_group_log_bytes", lambda: sum(s.log_size_bytes for s in shards.values()))

    async def close(self) -> None:
        """Answer every waiting request with NOT_COORDINATOR and stop all timers. Idempotent."""
        await self.shards.close()

    def _new_shard(self, partition: InternalPartition) -> GroupShard:
        log = RecordLog(
            OFFSETS_TOPIC,
            partition,
            CODEC,
            now_ms=self._runtime.clock.wall_ms,
            batch_bytes_max=self._settings.coordinator_batch_bytes_max,
            in_flight_max=self._settings.coordinator_writes_in_flight_max,
            load_bytes_max=self._settings.offsets_load_bytes_max,
            completions=self._completions,
        )
        shard = GroupShard(
            log,
            settings=self._settings,
            clock=self._runtime.clock,
            timers=self.shards.timers,
            budget=self.budget,
            counters=self._counters,
            rewrite_due=self._rewrite_due.set,
            forget_due=self._topics_deleted.set,
            is_gone=self._is_unloaded,
            topics=self._subscribable,
            creator=self._creator,
            turns=self._turns,
            spawn=self.shards.tasks.spawn,
            failed=lambda: self.shards.reopen(partition, shard),
            persister=self.persister,
            group_configs=self._group_configs,
        )
        return shard

    def _shard_loaded(self) -> None:
        # Topics may have been deleted while no broker led the partition.
        self._topics_deleted.set()

    async def _expire_now_and_then(self) -> None:
        while True:
            await self._runtime.clock.sleep(self._settings.offsets_retention_check_interval_ms / 1000)
            for shard in self.shards.loaded():
                self._expired.add(await shard.removal.expire())

    async def _whenever(self, due: asyncio.Event, work: Callable[[GroupShard], Awaitable[bool]]) -> None:
        """Call `work` for every loaded shard, one after the other, each time the event is set. Repeat after a
        pause if `work` returned False for a shard.
        """
        while True:
            await due.wait()
            due.clear()
            is_done = [await work(shard) for shard in self.shards.loaded()]
            if not all(is_done):
                due.set()
                await self._runtime.clock.sleep(RETRY_S)

    async def _shorten_log(self, shard: GroupShard) -> bool:
        if not shard.rewrite.is_due:
            return True
        is_written = await shard.rewrite.write()
        self._rewrites.add(int(is_written))
        return is_written

    def topics_changed(self) -> None:
        """Note that topics or partitions changed: consumer groups may need another assignment."""
        self._subscribable.changed()

    def topics_deleted(self) -> None:
        """Remove the committed offsets of deleted topics in the background."""
        for shard in self.shards.by_index.values():
            shard.has_to_forget_topics = True
        self._topics_deleted.set()

    async def _forget_deleted_topics(self, shard: GroupShard) -> bool:
        if shard.has_to_forget_topics:
            shard.has_to_forget_topics = False
            is_done = await shard.removal.forget_deleted_topics(self._is_unloaded)
            if not await shard.shares.forget_deleted_topics() or not is_done:
                shard.has_to_forget_topics = True
        return not shard.has_to_forget_topics

    def _is_unloaded(self, topic: str, committed: CommittedOffset) -> bool:
        # The image never goes back, and a commit is accepted only for an existing topic: a topic
        # that is missing now was deleted.
        topic_id = self._topics.topic_id(topic)
        if topic_id is None:
            return self._topics.partition_count(topic) is None
        return committed.topic_id is not None and committed.topic_id != topic_id.bytes

    def _shard(self, group_id: str) -> GroupShard | ErrorCode:
        if not group_id or not fits_record(group_id):
            return ErrorCode.INVALID_GROUP_ID
        return self.shards.of(group_id)

    async def _decided_shard(self, group_id: str) -> GroupShard | ErrorCode:
        await self.shards.decided((group_id,))
        return self._shard(group_id)

    # --- members

    async def join_group(
        self, group_id: str, request: JoinRequest, free: Callable[[], None] = _keep
    ) -> JoinAnswer:
        """JoinGroup. The coordinator sets the request's number and the id of a new member.

        Args:
            group_id: the group.
            request: the member.
            free: called when the member begins to wait for the others; the group's memory includes it then.
        """
        shard = await self._decided_shard(group_id)
        if isinstance(shard, ErrorCode):
            return JoinAnswer(shard, request.member_id)
        error = self._refusal_of(request)
        if error is not None:
            return JoinAnswer(error, request.member_id)
        prefix = (request.instance_id or request.client_id)[:_MEMBER_ID_PREFIX_CHARS_MAX]
        new_member_id = f"{prefix}-{self._runtime.randomness.uuid()}"
        return await shard.join(group_id, replace(request, new_member_id=new_member_id), free)

    def _refusal_of(self, request: JoinRequest) -> ErrorCode | None:
        low, high = self._settings.group_min_session_timeout_ms, self._settings.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len(request.protocols) > PROTOCOLS_MAX:
            return ErrorCode.INVALID_REQUEST
        ids = (request.member_id, request.instance_id or "", request.protocol_type)
        names = (*ids, *(protocol.name for protocol in request.protocols))
        if request.rebalance_timeout_ms < 0 or not all(map(fits_record, names)):
            return ErrorCode.INVALID_REQUEST
        return None

    async def sync_group(
        self, group_id: str, request: SyncRequest, free: Callable[[], None] = _keep
    ) -> SyncAnswer:
        """SyncGroup. `free` is called when a follower begins to wait, after its assignments were dropped."""
        shard = await self._decided_shard(group_id)
        return (
            SyncAnswer(shard) if isinstance(shard, ErrorCode) else await shard.sync(group_id, request, free)
        )

    def heartbeat(self, group_id: str, claim: MemberClaim) -> ErrorCode:
        """Heartbeat."""
        shard = self._shard(group_id)
        if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # An error would make the members rejoin whenever a coordinator loads their group. Their sessions
            # restart after the load.
            return ErrorCode.NONE
        return shard if isinstance(shard, ErrorCode) else shard.heartbeat(group_id, claim)

    def new_member_id(self) -> str:
        """Return an id for a member whose client generates none."""
        return str(self._runtime.randomness.uuid())

    async def consumer_heartbeat(self, group_id: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        """ConsumerGroupHeartbeat of valid form."""
        shard = await self._decided_shard(group_id)
        if isinstance(shard, ErrorCode):
            return HeartbeatAnswer(shard, shard.meaning)
        answer = await shard.consumers.heartbeat(group_id, request)
        shard.check_log()
        return answer

    async def share_heartbeat(self, group_id: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        """ShareGroupHeartbeat of valid form."""
        shard = await self._decided_shard(group_id)
        if isinstance(shard, ErrorCode):
            return HeartbeatAnswer(shard, shard.meaning)
        answer = await shard.shares.heartbeat(group_id, request)
        shard.check_log()
        return answer

    async def streams_heartbeat(self, group_id: str, request: StreamsHeartbeat) -> StreamsAnswer:
        """StreamsGroupHeartbeat of valid form."""
        shard = await self._decided_shard(group_id)
        if isinstance(shard, ErrorCode):
            return StreamsAnswer(shard, shard.meaning)
        answer = await shard.streams.heartbeat(group_id, request)
        shard.check_log()
        return answer

    async def leave_group(self, group_id: str, leaving: tuple[MemberClaim, ...]) -> ErrorCode | LeaveAnswer:
        """LeaveGroup."""
        left: list[tuple[MemberClaim, ErrorCode]] = []
        while True:
            shard = await self._decided_shard(group_id)
            if isinstance(shard, ErrorCode):
                return shard
            group = shard.get(group_id)
            is_classic = group is None or group.consumer is None
            count = len(leaving) if is_classic else _LEAVING_PER_EVENT
            part, leaving = leaving[:count], leaving[count:]
            left.extend((await shard.leave(group_id, part)).results)
            if not leaving:
                return LeaveAnswer(tuple(left))

    # --- offsets

    async def commit_offsets(
        self,
        group_id: str,
        claim: MemberClaim,
        commits: Mapping[TopicPartition, CommittedOffset],
        *,
        knows_epochs: bool = True,
    ) -> ErrorCode:
        """OffsetCommit for existing partitions with short enough metadata; GROUP_ID_NOT_FOUND for a
        member of a missing group.
        """
        await self.shards.decided((group_id,))
        shard = self.shards.of(group_id) if fits_record(group_id) else ErrorCode.INVALID_GROUP_ID
        if isinstance(shard, ErrorCode):
            return shard
        return await shard.commit(group_id, claim, commits, knows_epochs=knows_epochs)

    async def shard_for_transaction(self, group_id: str) -> GroupShard | ErrorCode:
        """Return the shard for a TxnOffsetCommit."""
        return await self._decided_shard(group_id)

    def fetch_offsets(
        self,
        group_id: str,
        wanted: Sequence[TopicPartition] | None,
        *,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> ErrorCode | Sequence[tuple[TopicPartition, CommittedOffset | ErrorCode | None]]:
        """OffsetFetch; None as `wanted` means all committed offsets. A missing group has no offsets.

        Member id and epoch are those of a member of a consumer group; its epoch must be the current one.
        With `require_stable`, a partition with an offset that is pending in a transaction gets
        UNSTABLE_OFFSET_COMMIT (KIP-447).
        """
        shard = self.shards.of(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.get(group_id)
        if group is None:
            return [(partition, None) for partition in wanted or ()]
        error = refusal_of_fetch(group, member_id, member_epoch)
        if error is not ErrorCode.NONE:
            return error
        offsets = group.offsets
        if not require_stable:
            return offsets.items() if wanted is None else [(one, offsets.get(one)) for one in wanted]
        unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return [
            (one, unstable if offsets.is_pending(one) else offsets.get(one))
            for one in (offsets.partitions() if wanted is None else wanted)
        ]

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """OffsetDelete: one result per partition, or one error for the group."""
        shard = await self._decided_shard(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return await shard.removal.delete_offsets(group_id, partitions)

    # administration; as in Kafka, a group id may be empty

    def describe_group(self, group_id: str) -> GroupDescription:
        """DescribeGroups, one group."""
        shard = self.shards.of(group_id)
        if isinstance(shard, ErrorCode):
            return GroupDescription(shard)
        group = shard.get(group_id)
        membership = None if group is None else group.classic
        if membership is None or membership.state is GroupState.DEAD:
            return GroupDescription(ErrorCode.GROUP_ID_NOT_FOUND)
        return GroupDescription(
            ErrorCode.NONE,
            state=membership.state,
            protocol_type=membership.protocol_type,
            protocol_name=membership.protocol_name if membership.state is GroupState.STABLE else None,
            members=membership.members(),
        )

    def consumer_group(self, group_id: str) -> ConsumerMembership | ErrorCode:
        """Return a consumer group, for reading within this turn of the event loop."""
        group = self._existing(group_id)
        membership = group if isinstance(group, ErrorCode) else group.consumer
        return ErrorCode.GROUP_ID_NOT_FOUND if membership is None else membership

    def streams_group(self, group_id: str) -> StreamsMembership | ErrorCode:
        """Return a streams group, for reading within this turn of the event loop."""
        group = self._existing(group_id)
        membership = group if isinstance(group, ErrorCode) else group.streams
        return ErrorCode.GROUP_ID_NOT_FOUND if membership is None else membership

    def _existing(self, group_id: str) -> Group | ErrorCode:
        shard = self.shards.of(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.get(group_id)
        is_missing = group is None or group.membership.state is GroupState.DEAD
        return ErrorCode.GROUP_ID_NOT_FOUND if group is None or is_missing else group

    def share_group(self, group_id: str) -> ShareMembership | ErrorCode:
        """Return a share group, for reading within this turn of the event loop."""
        group = self._existing(group_id)
        membership = group if isinstance(group, ErrorCode) else group.share
        return ErrorCode.GROUP_ID_NOT_FOUND if membership is None else membership

    async def share_groups(self, group_id: str) -> ShareGroups | ErrorCode:
        """Return the share groups of the shard of a group, for requests that concern its offsets."""
        shard = await self._decided_shard(group_id)
        return shard if isinstance(shard, ErrorCode) else shard.shares

    def list_groups(self) -> Steps[tuple[ErrorCode, list[GroupListing]]]:
        """ListGroups of this broker. While a partition is loading, the code shows that the list is
        incomplete.
        """
        if self.shards.refusal is not None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        is_whole = self.shards.is_whole
        groups: list[GroupListing] = []
        held = [group for shard in self.shards.loaded() for group in shard.groups()]
        for number, group in enumerate(held, 1):
            membership = group.membership
            state, kind = membership.state, membership.group_type
            if state is not GroupState.DEAD:
                groups.append(GroupListing(group.group_id, membership.protocol_type, state, kind))
            if number % ROWS_PER_STEP == 0:
                yield
        return ErrorCode.NONE if is_whole else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, groups

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups, one group."""
        await self.shards.decided((group_id,))
        shard = self.shards.of(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        error = await shard.shares.forget_states(group_id)
        return error if error is not ErrorCode.NONE else await shard.removal.delete_group(group_id)
