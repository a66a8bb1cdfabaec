"""The share partitions of the topic partitions that this broker leads.

A share partition is loaded when the first member of its group fetches the topic partition here. Its memory is
dropped when the topic partition closes, when a newer leader or a reset of the group's offsets fences it, and
when the group's last session at this broker ends. Locks do not expire while the broker may not answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from ponor_kafka.errors import ErrorCode
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.share_persister import SharePartitionKey, SharePersister, ShareState
from ponor_broker.coordination.timers import TimerQueue
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.partition import Partition
from ponor_broker.requests.bounded_gather import bounded_gather
from ponor_broker.serving import Serving
from ponor_broker.share_partitions.led_partition import (
    FENCED,
    PARTITION_BYTES,
    RUN_BYTES,
    LedSharePartition,
)
from ponor_broker.share_partitions.settings import GroupRules, ResetPoint, ShareRules, ShareSettings
from ponor_broker.share_partitions.share_partition import SharePartition, ShareStateCorruptError

_LOG = logging.getLogger(__name__)
RETRY_S: Final = 1.0
"""Pause before the state is read again after an error. Meanwhile, members get no records."""
MISSING_RETRY_S_MAX: Final = 16.0
"""Longest pause if there is no state: the group does not exist, or has not subscribed to the topic."""
COMPARISON_MS_MAX: Final = 2_000
"""After this time, members get records although the memory was not compared with the durable state."""
COMPARISON_INTERVAL_MS: Final = 1_000
"""Members wait for a comparison only if this time has passed since they waited for another one. Otherwise,
sessions that begin all the time would stop the delivery."""
COMPARED_TOGETHER_MAX: Final = 64

_LOOK_UPS_PER_STEP: Final = 500
"""Share partitions that one step of the end of a session visits without releasing records."""

_K = TypeVar("_K")
FindTime: TypeAlias = Callable[[Partition, int], Awaitable[int | None]]
"""Returns the offset of the first record with at least this timestamp; None if there is none.

Raises:
    Exception: the log cannot be read now.
"""


class LedSharePartitions:
    """Loads, writes and drops share partitions. Call `close` before partitions close."""

    def __init__(
        self,
        persister: SharePersister,
        settings: ShareSettings,
        rules: ShareRules,
        find_time: FindTime,
        serving: Serving,
        runtime: Runtime,
    ) -> None:
        self._persister = persister
        self._rules = rules
        self._find_time = find_time
        self._clock = runtime.clock
        self._memory_bytes_max = settings.share_memory_bytes_max
        self._memory_bytes = 0
        self._tasks = BackgroundTasks(runtime.fail_stop, tasks_max=1_000_000)
        self._timers = TimerQueue(runtime.clock, self._tasks)
        self._turns = Turns()
        self._by_key: dict[SharePartitionKey, LedSharePartition] = {}
        self._by_partition: dict[PartitionKey, dict[SharePartitionKey, LedSharePartition]] = {}
        self._by_group: dict[str, dict[SharePartitionKey, LedSharePartition]] = {}
        self._comparing: set[str] = set()
        """Groups whose share partitions are compared with their durable states."""
        telemetry = runtime.telemetry
        telemetry.gauge("ponor_share_partitions", lambda: len(self._by_key))
        telemetry.gauge("ponor_share_memory_bytes", lambda: self._memory_bytes)
        self._expired = telemetry.counter("ponor_share_locks_expired_total")
        serving.listeners.append(self._permission_changed)

    def __len__(self) -> int:
        return len(self._by_key)

    def limited(self, rules: GroupRules) -> GroupRules:
        """Return the rules with which members acquire records now: without memory, only those in flight."""
        if self._memory_bytes < self._memory_bytes_max:
            return rules
        return replace(rules, delivery=replace(rules.delivery, in_flight_max=0))

    @property
    def now_ms(self) -> int:
        """The time for locks. It stands still while the broker may not answer."""
        return self._timers.now_ms

    def _permission_changed(self, withdrawn: bool) -> None:
        if withdrawn:
            self._timers.pause_all()
        else:
            self._timers.resume_all()

    # Look-ups

    def find(self, group_id: str, topic_id: bytes, index: int) -> LedSharePartition | None:
        """Return a share partition whose memory is here and whose state was read."""
        share = self._by_key.get(SharePartitionKey(group_id, UUID(bytes=topic_id), index))
        return share if share is not None and share.state is not None else None

    def open(self, group_id: str, partition: Partition) -> LedSharePartition | None:
        """Return the share partition of an open topic partition, maybe before its state was read; None if
        there is no memory for another one.
        """
        topic_id, index = partition.identity.key
        key = SharePartitionKey(group_id, UUID(bytes=topic_id), index)
        share = self._by_key.get(key)
        if share is not None and share.partition is not partition:
            self._drop(share)  # the topic partition was opened again, at a later epoch
            share = None
        if share is None:
            if self._memory_bytes + PARTITION_BYTES > self._memory_bytes_max or self._tasks.is_closed:
                return None
            share = self._by_key[key] = LedSharePartition(key, partition, self._clock)
            self._by_partition.setdefault(partition.identity.key, {})[key] = share
            self._by_group.setdefault(group_id, {})[key] = share
            self._memory_bytes += share.size_bytes
            self._tasks.spawn(self._load(share), f"load share partition {key}")
        share.is_unused = False
        return share

    # Load

    async def _load(self, share: LedSharePartition) -> None:
        is_reported, pause_s = False, RETRY_S
        while True:
            outcome = await self._read(share)
            if share.is_closed:
                return
            if isinstance(outcome, SharePartition):
                share.loaded(outcome, self.now_ms)
                self.changed(share)
                return
            if outcome in FENCED:
                self._drop(share)
                return
            if not is_reported:
                is_reported = True
                _LOG.warning("share partition %s is not available, retrying: %s", share.key, outcome.name)
            await share.retry.wait(pause_s)
            is_missing = outcome is ErrorCode.INVALID_REQUEST
            pause_s = min(2 * pause_s, MISSING_RETRY_S_MAX) if is_missing else RETRY_S

    async def _read(self, share: LedSharePartition) -> SharePartition | ErrorCode:
        """Return the restored state, whose start is known and durable."""
        partition = share.partition
        read = await self._persister.read(share.key, partition.leader_epoch)
        if not isinstance(read, ShareState):
            return read
        share.state_epoch = read.state_epoch
        if read.start_offset < 0:
            try:
                start_offset = await self._reset_offset(partition, self._rules.of(share.key.group_id))
            except Exception as error:  # noqa: BLE001 - any error of the storage: the load is repeated
                _LOG.warning("share partition %s: its start is not known yet: %s", share.key, error)
                return ErrorCode.KAFKA_STORAGE_ERROR
            # Durable before the first delivery: a later leader must not begin at a later offset.
            code = await self._persister.write(
                share.key,
                state_epoch=read.state_epoch,
                leader_epoch=partition.leader_epoch,
                start_offset=start_offset,
                delivery_complete_count=0,
                batches=(),
            )
            if code is not ErrorCode.NONE:
                return code
            read = ShareState(read.state_epoch, start_offset)
        try:
            return SharePartition(read)
        except ShareStateCorruptError as error:
            _LOG.error("the state of share partition %s is damaged: %s", share.key, error)
            return ErrorCode.CORRUPT_MESSAGE

    async def _reset_offset(self, partition: Partition, rules: GroupRules) -> int:
        if rules.reset is ResetPoint.EARLIEST:
            return partition.log_start_offset
        if rules.reset is ResetPoint.BY_DURATION:
            found = await self._find_time(partition, self._clock.wall_ms() - rules.reset_ms)
            if found is not None:
                return found
        return partition.high_watermark

    # Comparison

    def session_begun(self, group_id: str) -> None:
        """Compare the memory of a group with its durable states, because a member begins a session.

        An administrator may have reset or deleted the group while a former member still had a session here.
        The memory does not show that until a write is fenced, or not at all if the group was created again.
        """
        shares = self._by_group.get(group_id, {})
        if not shares or self._tasks.is_closed:
            return
        now_ms, is_blocking = self.now_ms, False
        for share in shares.values():
            share.is_comparison_due = share.state is not None
            if now_ms - share.compared_ms >= COMPARISON_INTERVAL_MS:
                share.compared_ms = now_ms
                share.retry.set()
                if share.is_comparison_due:
                    share.is_comparing = is_blocking = True
        if is_blocking:
            self._timers.set(("comparison", group_id), COMPARISON_MS_MAX, partial(self._compared, group_id))
        if group_id not in self._comparing:
            self._comparing.add(group_id)
            self._tasks.spawn(self._compare_group(group_id), f"compare share group {group_id}")

    async def _compare_group(self, group_id: str) -> None:
        while due := [each for each in self._by_group.get(group_id, {}).values() if each.is_comparison_due]:
            await bounded_gather(map(self._compare, due), together_max=COMPARED_TOGETHER_MAX)
        self._comparing.discard(group_id)

    async def _compare(self, share: LedSharePartition) -> None:
        share.is_comparison_due = False
        durable = await self._persister.summary(share.key)
        if share.is_closed:
            return
        if not isinstance(durable, ErrorCode) and share.is_replaced_by(durable):
            _LOG.info("the state of share partition %s was replaced; reading it again", share.key)
            self._drop(share)
        else:
            share.compared(self.now_ms)

    def _compared(self, group_id: str) -> None:
        """Deliver records again: the coordinators do not answer in time."""
        for share in list(self._by_group.get(group_id, {}).values()):
            share.compared(self.now_ms)

    # Changes

    def changed(self, share: LedSharePartition) -> None:
        """Write what changed, set the timer of the locks and count the memory; call it after each use."""
        state = share.state
        if state is None or share.is_closed:
            return
        size_bytes = PARTITION_BYTES + RUN_BYTES * len(state.runs)
        self._memory_bytes += size_bytes - share.size_bytes
        share.size_bytes = size_bytes
        if state.needs_write and not share.is_writing:
            share.is_writing = True
            self._tasks.spawn(self._write(share), f"write share partition {share.key}")

    def locked(self, share: LedSharePartition, lock_ends_ms: int) -> None:
        """Make sure that the timer fires when a new lock ends."""
        if share.timer_ends_ms is None or lock_ends_ms < share.timer_ends_ms:
            share.timer_ends_ms = lock_ends_ms
            self._timers.set(share, max(lock_ends_ms - self.now_ms, 0), partial(self._expire, share))

    def _expire(self, share: LedSharePartition) -> None:
        share.timer_ends_ms = None
        state = share.state
        if state is None or share.is_closed:
            return
        rules = self._rules.of(share.key.group_id)
        expired = state.expire(self.now_ms, rules.delivery.deliveries_max)
        next_ms = state.next_expiry_ms
        if next_ms is not None:
            self.locked(share, next_ms)
        if expired:
            self._expired.add(expired)
            self.changed(share)
            share.wake()

    async def _write(self, share: LedSharePartition) -> None:
        is_current = await share.write_all(self._persister)
        share.is_writing = False
        if not is_current:
            self._drop(share)
            return
        assert share.state is not None
        next_ms = share.state.next_expiry_ms
        if next_ms is not None and not share.is_closed:
            # After a failed write, the lock may have ended during the write.
            self.locked(share, next_ms)
        self.changed(share)
        if share.is_unused:
            self._drop(share)

    # End

    def release(
        self,
        group_id: str,
        member_id: str,
        keys: Sequence[PartitionKey],
        *,
        is_last: bool,
        has_returned: Callable[[], bool],
    ) -> None:
        """Release the records of a member whose session ended, in turns.

        A member for which `has_returned` is true has a new session and keeps its records. `is_last`: it was
        the group's last session at this broker, so its memory is dropped when everything is written. An
        administrator may reset the offsets of a group without members; the next member must see the new ones.
        """
        if is_last:
            for share in self._by_group.get(group_id, {}).values():
                share.is_unused = True
        if not self._tasks.is_closed:
            steps = self._releases(group_id, member_id, keys, is_last, has_returned)
            self._tasks.spawn(self._turns.run(steps), f"end share session of {group_id}")

    def _releases(
        self,
        group_id: str,
        member_id: str,
        keys: Sequence[PartitionKey],
        is_last: bool,
        has_returned: Callable[[], bool],
    ) -> Steps[None]:
        rules = self._rules.of(group_id)
        for number, (topic_id, index) in enumerate(keys, 1):
            share = self._by_key.get(SharePartitionKey(group_id, UUID(bytes=topic_id), index))
            if share is not None and not has_returned():
                share.release(member_id, rules)
                self.changed(share)
                yield
            elif number % _LOOK_UPS_PER_STEP == 0:
                yield
        unused = list(self._by_group.get(group_id, {}).values()) if is_last else ()
        for number, share in enumerate(unused, 1):
            if share.is_unused and not share.is_writing:
                self._drop(share)
            if number % _LOOK_UPS_PER_STEP == 0:
                yield

    def partition_removed(self, partition: Partition) -> None:
        """Drop the share partitions of a topic partition that closes or was moved."""
        for share in list(self._by_partition.get(partition.identity.key, {}).values()):
            if share.partition is partition:
                self._drop(share)

    def _drop(self, share: LedSharePartition) -> None:
        if share.is_closed:
            return
        del self._by_key[share.key]
        _remove(self._by_partition, share.partition.identity.key, share.key)
        _remove(self._by_group, share.key.group_id, share.key)
        self._memory_bytes -= share.size_bytes
        self._timers.cancel(share)
        share.close()

    async def close(self) -> None:
        """Drop everything and stop."""
        for share in list(self._by_key.values()):
            self._drop(share)
        await self._tasks.close()


def _remove(
    index: dict[_K, dict[SharePartitionKey, LedSharePartition]], row: _K, key: SharePartitionKey
) -> None:
    del index[row][key]
    if not index[row]:
        del index[row]
