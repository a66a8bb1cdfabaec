"""The group coordinator of one broker: finds the shard of a group, loads and unloads shards with
their partitions.

The entry point for handlers. It checks what does not depend on a group's state (ids, bounds),
assigns member ids, and refuses requests for groups that another broker coordinates or that are
being loaded. `shard` does the rest.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.turns import Steps, in_turns
from s3stream.errors import S3StreamError

from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.group import GroupDescription, GroupListing
from ponor_broker.groups.group_table import GroupBudget
from ponor_broker.groups.instructions import JoinAnswer, LeaveAnswer, SyncAnswer
from ponor_broker.groups.member import PROTOCOLS_MAX
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.offsets_log import OffsetsLog, OffsetsLogCorruptError
from ponor_broker.groups.ports import (
    BrokerAddress,
    OffsetsPartition,
    OffsetsPartitions,
    TopicCreator,
    TopicDirectory,
)
from ponor_broker.groups.readiness import Readiness
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.record_codec import fits_record
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.groups.shard import GroupShard
from ponor_broker.groups.timers import TimerQueue
from ponor_broker.serving import Serving


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode()`: over UTF-16 code units, a signed 32-bit number."""
    encoded = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for unit in struct.unpack(f"<{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(group_id: str, partitions: int) -> int:
    """Return the partition of `__consumer_offsets` that stores a group: Kafka's `abs(hashCode) %
    partitions`, where the abs of the smallest int is 0.

    Kafka's tools compute the same, so the rule is part of the format.
    """
    assert partitions > 0
    hashed = java_string_hash(group_id)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions


_LOG = logging.getLogger(__name__)
_RETRY_S = 1.0
_DONE: Final = object()
_MEMBER_ID_PREFIX_CHARS_MAX = 255
ROWS_PER_STEP: Final = 1_000
"""Groups that one step of a request visits: about 4 ms."""


class GroupCoordinator:
    """The coordinator; call `start` before partitions open, `close` before they close."""

    def __init__(
        self,
        partitions: OffsetsPartitions,
        creator: TopicCreator,
        topics: TopicDirectory,
        serving: Serving,
        *,
        node_id: int,
        runtime: Runtime,
        settings: GroupSettings,
    ) -> None:
        self._partitions = partitions
        self._creator = creator
        self._topics = topics
        self._serving = serving
        self._node_id = node_id
        self._runtime = runtime
        self._settings = settings
        self._tasks = BackgroundTasks(runtime.fail_stop)
        self._timers = TimerQueue(runtime.clock, self._tasks)
        self._readiness = Readiness(self._timers, settings.coordinator_wait_ms_max)
        serving.listeners.append(self._permission_changed)
        self._shards: dict[int, GroupShard] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._creation: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._rewrite_due = asyncio.Event()
        self._topics_deleted = asyncio.Event()
        self.budget = GroupBudget(settings, runtime.telemetry.counter("ponor_group_refusals_total"))
        self._expired = runtime.telemetry.counter("ponor_group_offsets_expired_total")
        self._rewrites = runtime.telemetry.counter("ponor_group_log_rewrites_total")

    @property
    def settings(self) -> GroupSettings:
        """Bounds, for handlers."""
        return self._settings

    @property
    def refusal(self) -> ErrorCode | None:
        """Error for every group while this broker may not answer."""
        return None if self._serving.refusal is None else ErrorCode.NOT_COORDINATOR

    def _permission_changed(self, withdrawn: bool) -> None:
        """Stop the timers while heartbeats are refused, so that members are not expired for it."""
        if withdrawn:
            self._timers.stand_still()
        else:
            self._timers.go_on()
        self._readiness.changed()

    # --- life

    def start(self) -> None:
        """Follow the partitions of `__consumer_offsets` that open and close here."""
        self._partitions.follow(OFFSETS_TOPIC, self._opened, self._closed)
        self._tasks.spawn(self._expire_now_and_then(), "group expiry")
        # One log at a time, no faster than the disk, which commits share.
        self._tasks.spawn(self._whenever(self._rewrite_due, self._shorten_log), "group log rewrites")
        forget = self._whenever(self._topics_deleted, self._forget_deleted_topics)
        self._tasks.spawn(forget, "offsets of deleted topics")
        telemetry, budget = self._runtime.telemetry, self.budget
        for state in GroupState:
            telemetry.gauge("ponor_groups", partial(budget.by_state.__getitem__, state), state=state)
        telemetry.gauge("ponor_group_members", lambda: budget.members)
        telemetry.gauge("ponor_group_offsets", lambda: budget.offsets)
        telemetry.gauge("ponor_groups_memory_bytes", lambda: budget.size_bytes)
        telemetry.gauge(
            "ponor_group_log_bytes", lambda: sum(shard.log_size_bytes for shard in self._shards.values())
        )

    async def close(self) -> None:
        """Answer every waiting request with NOT_COORDINATOR and stop all timers. Idempotent."""
        self._readiness.changed()
        while self._shards or self._closing:
            closing = [shard.close(ErrorCode.NOT_COORDINATOR) for shard in self._shards.values()]
            self._shards.clear()
            self._readiness.changed()
            for steps in closing:
                await in_turns(steps)
            if self._closing:
                await asyncio.wait(self._closing)
        await self._tasks.close()

    def _opened(self, partition: OffsetsPartition) -> None:
        if self._tasks.is_closed:
            return  # the open ended after the coordinator was closed: its groups are never served
        assert partition.index not in self._shards, f"{OFFSETS_TOPIC}-{partition.index} was opened twice"
        log = OffsetsLog(
            partition,
            now_ms=self._runtime.clock.wall_ms,
            batch_bytes_max=self._settings.coordinator_batch_bytes_max,
            in_flight_max=self._settings.coordinator_writes_in_flight_max,
            load_bytes_max=self._settings.offsets_load_bytes_max,
        )
        shard = GroupShard(
            log,
            settings=self._settings,
            clock=self._runtime.clock,
            timers=self._timers,
            budget=self.budget,
            rewrite_due=self._rewrite_due.set,
        )
        self._shards[partition.index] = shard
        self._loads[partition.index] = self._tasks.spawn(self._load(shard, log.name), f"load {log.name}")

    def _closed(self, partition: OffsetsPartition) -> None:
        load = self._loads.pop(partition.index, None)
        if load is not None:
            load.cancel()
        shard = self._shards.pop(partition.index, None)
        if shard is not None:
            steps = shard.close(ErrorCode.NOT_COORDINATOR)
            if next(steps, _DONE) is not _DONE:
                task = self._tasks.spawn(in_turns(steps), f"close {OFFSETS_TOPIC}-{partition.index}")
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        self._readiness.changed()

    async def _load(self, shard: GroupShard, name: str) -> None:
        started_ns = self._runtime.clock.monotonic_ns()
        while not shard.is_loaded:
            try:
                await shard.load()
            except (S3StreamError, OffsetsLogCorruptError) as error:
                # Its groups answer COORDINATOR_LOAD_IN_PROGRESS meanwhile; other partitions are not affected.
                _LOG.error("loading the groups of %s failed, retrying: %s", name, error)
                await self._runtime.clock.sleep(_RETRY_S)
        self._topics_deleted.set()
        self._readiness.changed()
        if len(shard):
            elapsed_ms = (self._runtime.clock.monotonic_ns() - started_ns) // 1_000_000
            _LOG.info("%s: %d groups loaded in %d ms", name, len(shard), elapsed_ms)

    async def _expire_now_and_then(self) -> None:
        while True:
            await self._runtime.clock.sleep(self._settings.offsets_retention_check_interval_ms / 1000)
            for shard in self._loaded():
                self._expired.add(await shard.removal.expire())

    async def _whenever(self, due: asyncio.Event, work: Callable[[GroupShard], Awaitable[bool]]) -> None:
        """Do the work of every shard, one after the other, whenever the event is set; after a pause
        again if `work` returns False for one of them.
        """
        while True:
            await due.wait()
            due.clear()
            is_done = [await work(shard) for shard in self._loaded()]
            if not all(is_done):
                due.set()
                await self._runtime.clock.sleep(_RETRY_S)

    async def _shorten_log(self, shard: GroupShard) -> bool:
        if not shard.rewrite.is_due:
            return True
        is_written = await shard.rewrite.write()
        self._rewrites.add(int(is_written))
        return is_written

    def topics_deleted(self) -> None:
        """Topics were deleted: remove their committed offsets in the background."""
        for shard in self._shards.values():
            shard.has_to_forget_topics = True
        self._topics_deleted.set()

    async def _forget_deleted_topics(self, shard: GroupShard) -> bool:
        if shard.has_to_forget_topics:
            shard.has_to_forget_topics = False
            if not await shard.removal.forget_deleted_topics(self._is_gone):
                shard.has_to_forget_topics = True
        return not shard.has_to_forget_topics

    def _is_gone(self, topic: str, committed: CommittedOffset) -> bool:
        # The image never goes back, and a commit is accepted only for an existing topic: a topic
        # that is missing now was deleted.
        topic_id = self._topics.topic_id(topic)
        if topic_id is None:
            return self._topics.partition_count(topic) is None
        return committed.topic_id is not None and committed.topic_id != topic_id.bytes

    def _loaded(self) -> list[GroupShard]:
        return [shard for shard in self._shards.values() if shard.is_loaded]

    # location of a group

    def partition_of(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that stores a group."""
        count = self._topics.partition_count(OFFSETS_TOPIC) or self._settings.offsets_topic_partitions
        return partition_for(group_id, count)

    async def find(self, group_ids: Sequence[str]) -> list[BrokerAddress | None]:
        """Return the broker that coordinates each group; None if there is none yet (the client retries).

        The first call creates the topic and waits for it with a bound.
        """
        if self.refusal is None and self._topics.partition_count(OFFSETS_TOPIC) is None:
            if self._creation is None:
                self._creation = self._tasks.spawn(self._create_topic(), f"create {OFFSETS_TOPIC}")
            await self._readiness.wait(lambda: self._creation is not None and self.refusal is None)
        if self._topics.partition_count(OFFSETS_TOPIC) is None:
            return [None] * len(group_ids)
        # One wait for all groups: a client chooses how many it names.
        indexes = await in_turns(self._partitions_of(group_ids))
        distinct = set(indexes)
        await self._readiness.wait(lambda: any(map(self._is_new, distinct)))
        await self._readiness.wait(lambda: any(map(self._is_undecided, distinct)))
        if self.refusal is not None:
            return [None] * len(group_ids)
        leaders = {index: self._topics.leader(OFFSETS_TOPIC, index) for index in distinct}
        return [leaders[index] for index in indexes]

    def _partitions_of(self, group_ids: Iterable[str]) -> Steps[list[int]]:
        indexes: list[int] = []
        for number, group_id in enumerate(group_ids, 1):
            indexes.append(self.partition_of(group_id))
            if number % ROWS_PER_STEP == 0:
                yield
        return indexes

    def _is_new(self, index: int) -> bool:
        """Return whether the partition has not been opened for the first time yet."""
        if self.refusal is not None or self._tasks.is_closed:
            return False
        return self._topics.is_new(OFFSETS_TOPIC, index)

    def image_changed(self) -> None:
        """Topics, partitions or brokers changed: waiting requests check again."""
        self._readiness.changed()

    async def decided(self, group_ids: Iterable[str]) -> None:
        """Wait, with a bound, for groups whose partition this broker leads, or will lead soon, but
        does not serve yet.
        """
        indexes = set(await in_turns(self._partitions_of(group_ids)))
        await self._readiness.wait(lambda: any(map(self._is_undecided, indexes)))

    def _is_undecided(self, index: int) -> bool:
        if self.refusal is not None or self._tasks.is_closed:
            return False
        shard = self._shards.get(index)
        if shard is not None:
            return not shard.is_loaded
        # The broker that named this one to the client may have a newer image, with the first open
        # or the election after a move.
        here = (OFFSETS_TOPIC, index, self._node_id)
        return self._topics.is_led_by(*here) or self._topics.is_moving_to(*here)

    async def _create_topic(self) -> None:
        try:
            await self._creator.ensure(OFFSETS_TOPIC, partitions=self._settings.offsets_topic_partitions)
        except Exception as error:  # noqa: BLE001 - any error: the next request retries
            _LOG.warning("creating %s failed: %s", OFFSETS_TOPIC, error)
        finally:
            self._creation = None
            self._readiness.changed()

    def _shard(self, group_id: str) -> GroupShard | ErrorCode:
        if not group_id or not fits_record(group_id):
            return ErrorCode.INVALID_GROUP_ID
        return self._shard_of_any(group_id)

    async def _decided_shard(self, group_id: str) -> GroupShard | ErrorCode:
        await self.decided((group_id,))
        return self._shard(group_id)

    def _shard_of_any(self, group_id: str) -> GroupShard | ErrorCode:
        """Return the shard of any group id. Consumers without a group may commit under the empty
        id, as in Kafka.
        """
        if self.refusal is not None:
            return self.refusal
        index = self.partition_of(group_id)
        shard = self._shards.get(index)
        if shard is None:
            # Led here but not open yet, as just after the topic was created: the client is at the
            # right broker and must wait.
            is_ours = self._topics.is_led_by(OFFSETS_TOPIC, index, self._node_id)
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_ours else ErrorCode.NOT_COORDINATOR
        return shard if shard.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    # --- members

    async def join_group(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """JoinGroup. The coordinator sets the request's number and the id of a new member."""
        shard = await self._decided_shard(group_id)
        if isinstance(shard, ErrorCode):
            return JoinAnswer(shard, request.member_id)
        error = self._refusal_of(request)
        if error is not None:
            return JoinAnswer(error, request.member_id)
        prefix = (request.instance_id or request.client_id)[:_MEMBER_ID_PREFIX_CHARS_MAX]
        new_member_id = f"{prefix}-{self._runtime.randomness.uuid()}"
        return await shard.join(group_id, replace(request, new_member_id=new_member_id))

    def _refusal_of(self, request: JoinRequest) -> ErrorCode | None:
        low, high = self._settings.group_min_session_timeout_ms, self._settings.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len(request.protocols) > PROTOCOLS_MAX:
            return ErrorCode.INVALID_REQUEST
        names = (request.protocol_type, request.instance_id or "", *(p.name for p in request.protocols))
        if request.rebalance_timeout_ms < 0 or not all(map(fits_record, names)):
            return ErrorCode.INVALID_REQUEST
        return None

    async def sync_group(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """SyncGroup."""
        shard = await self._decided_shard(group_id)
        return SyncAnswer(shard) if isinstance(shard, ErrorCode) else await shard.sync(group_id, request)

    def heartbeat(self, group_id: str, claim: MemberClaim) -> ErrorCode:
        """Heartbeat."""
        shard = self._shard(group_id)
        if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The member must not rejoin because its coordinator restarted: its session restarts
            # after the load.
            return ErrorCode.NONE
        return shard if isinstance(shard, ErrorCode) else shard.heartbeat(group_id, claim)

    async def leave_group(self, group_id: str, leaving: tuple[MemberClaim, ...]) -> ErrorCode | LeaveAnswer:
        """LeaveGroup."""
        shard = await self._decided_shard(group_id)
        return shard if isinstance(shard, ErrorCode) else await shard.leave(group_id, leaving)

    # --- offsets

    async def commit_offsets(
        self, group_id: str, claim: MemberClaim, commits: Mapping[TopicPartition, CommittedOffset]
    ) -> ErrorCode:
        """OffsetCommit for existing partitions with short enough metadata; GROUP_ID_NOT_FOUND for a
        member of a missing group.
        """
        await self.decided((group_id,))
        shard = self._shard_of_any(group_id) if fits_record(group_id) else ErrorCode.INVALID_GROUP_ID
        return shard if isinstance(shard, ErrorCode) else await shard.commit(group_id, claim, commits)

    def fetch_offsets(
        self, group_id: str, wanted: Sequence[TopicPartition] | None
    ) -> ErrorCode | Sequence[tuple[TopicPartition, CommittedOffset | None]]:
        """OffsetFetch; None as `wanted` means all committed offsets. A missing group has none."""
        shard = self._shard_of_any(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.get(group_id)
        if wanted is None:
            return [] if group is None else group.offsets.items()
        return [(partition, None if group is None else group.offsets.get(partition)) for partition in wanted]

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """OffsetDelete: one result per partition, or one error for the group."""
        shard = await self._decided_shard(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return await shard.removal.delete_offsets(group_id, partitions)

    # administration: including groups with an empty id, as in Kafka

    def describe_group(self, group_id: str) -> GroupDescription:
        """DescribeGroups, one group."""
        shard = self._shard_of_any(group_id)
        if isinstance(shard, ErrorCode):
            return GroupDescription(shard)
        group = shard.get(group_id)
        if group is None or group.membership.state is GroupState.DEAD:
            return GroupDescription(ErrorCode.GROUP_ID_NOT_FOUND)
        membership = group.membership
        return GroupDescription(
            ErrorCode.NONE,
            state=membership.state,
            protocol_type=membership.protocol_type,
            protocol_name=membership.protocol_name if membership.state is GroupState.STABLE else None,
            members=membership.members(),
        )

    def list_groups(self) -> Steps[tuple[ErrorCode, list[GroupListing]]]:
        """ListGroups of this broker. While a partition is loading, the code shows that the list is
        incomplete.
        """
        if self._serving.refusal is not None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        is_whole = all(shard.is_loaded for shard in self._shards.values())
        groups: list[GroupListing] = []
        held = [group for shard in self._loaded() for group in shard.groups()]
        for number, group in enumerate(held, 1):
            membership = group.membership
            if membership.state is not GroupState.DEAD:
                groups.append(GroupListing(group.group_id, membership.protocol_type, membership.state))
            if number % ROWS_PER_STEP == 0:
                yield
        return ErrorCode.NONE if is_whole else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, groups

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups, one group."""
        await self.decided((group_id,))
        shard = self._shard_of_any(group_id)
        return shard if isinstance(shard, ErrorCode) else await shard.removal.delete_group(group_id)
