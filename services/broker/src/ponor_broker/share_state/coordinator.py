"""The share coordinator of one broker: finds the shard of a share partition, and runs the background work of
all shards.

The entry point for handlers. `coordination/shards.py` loads and unloads shards and refuses requests for share
partitions that another broker coordinates; `shard.py` handles the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import SHARE_STATE_TOPIC

from ponor_broker.coordination.ports import InternalPartition
from ponor_broker.coordination.record_format import fits_record
from ponor_broker.coordination.record_log import RecordLog, completion_budget
from ponor_broker.coordination.shards import RETRY_S, BrokerPorts, CoordinatedTopic, Shards
from ponor_broker.coordination.share_persister import SharePartitionKey
from ponor_broker.share_state.record_codec import CODEC
from ponor_broker.share_state.records import NO_COUNT, NO_OFFSET, ShareSnapshot
from ponor_broker.share_state.settings import ShareStateSettings
from ponor_broker.share_state.shard import Decide, ShareStateShard
from ponor_broker.share_state.state_table import ShareStateBudget
from ponor_broker.share_state.transitions import Change, WriteRequest, initialized, read, written

RECORD_BATCH_BYTES_MAX: Final = 1 << 20
"""Enough for a state with the most batches."""
NO_STATE: Final = ShareSnapshot(0, 0, 0, NO_OFFSET, NO_COUNT, 0, 0)
"""The summary of a share partition without a state."""


class ShareCoordinator:
    """The coordinator; call `start` before partitions open, `close` before they close."""

    def __init__(self, ports: BrokerPorts, *, settings: ShareStateSettings) -> None:
        self._runtime = ports.runtime
        self._settings = settings
        self._topics = ports.topics
        topic = CoordinatedTopic(
            SHARE_STATE_TOPIC,
            "share partitions",
            settings.share_state_topic_partitions,
            settings.share_state_wait_ms_max,
        )
        self.shards: Final = Shards(topic, ports, create=self._new_shard, loaded=self._shard_loaded)
        self._completions = completion_budget(ports.runtime.clock)
        self._rewrite_due = asyncio.Event()
        self._topics_deleted = asyncio.Event()
        telemetry = ports.runtime.telemetry
        self.budget = ShareStateBudget(
            settings.share_state_memory_bytes_max, telemetry.counter("ponor_share_state_refusals_total")
        )
        self._rewrites = telemetry.counter("ponor_share_state_log_rewrites_total")

    # --- life

    def start(self) -> None:
        """Load partitions of `__share_group_state` when they open here; start the background work."""
        self.shards.start()
        # Rewrites one log at a time, because requests use the same disk.
        self.shards.tasks.spawn(self._whenever(self._rewrite_due, self._rewrite), "share state rewrites")
        self.shards.tasks.spawn(
            self._whenever(self._topics_deleted, self._forget_topics), "share state of deleted topics"
        )
        telemetry, budget, shards = self._runtime.telemetry, self.budget, self.shards.by_index
        telemetry.gauge("ponor_share_state_keys", lambda: sum(map(len, shards.values())))
        telemetry.gauge("ponor_share_state_memory_bytes", lambda: budget.size_bytes)
        telemetry.gauge(
            "ponor_share_state_log_bytes", lambda: sum(shard.log_size_bytes for shard in shards.values())
        )

    async def close(self) -> None:
        """Answer every waiting request with NOT_COORDINATOR. Idempotent."""
        await self.shards.close()

    def topics_deleted(self) -> None:
        """Delete the states of deleted topics in the background."""
        for shard in self.shards.by_index.values():
            shard.has_to_forget_topics = True
        self._topics_deleted.set()

    def _new_shard(self, partition: InternalPartition) -> ShareStateShard:
        log = RecordLog(
            SHARE_STATE_TOPIC,
            partition,
            CODEC,
            now_ms=self._runtime.clock.wall_ms,
            batch_bytes_max=RECORD_BATCH_BYTES_MAX,
            in_flight_max=self._settings.share_state_writes_in_flight_max,
            load_bytes_max=self._settings.share_state_load_bytes_max,
            completions=self._completions,
        )
        return ShareStateShard(
            log,
            settings=self._settings,
            clock=self._runtime.clock,
            budget=self.budget,
            rewrite_due=self._rewrite_due.set,
        )

    def _shard_loaded(self) -> None:
        # Topics may have been deleted while no broker led the partition.
        self._topics_deleted.set()

    async def _whenever(self, due: asyncio.Event, work: Callable[[ShareStateShard], Awaitable[bool]]) -> None:
        """Do the work for each loaded shard when it is due; repeat it after a pause if it failed."""
        while True:
            await due.wait()
            due.clear()
            is_done = [await work(shard) for shard in self.shards.loaded()]
            if not all(is_done):
                due.set()
                await self._runtime.clock.sleep(RETRY_S)

    async def _rewrite(self, shard: ShareStateShard) -> bool:
        if not shard.is_rewrite_due:
            return True
        is_written = await shard.rewrite()
        self._rewrites.add(int(is_written))
        return is_written

    async def _forget_topics(self, shard: ShareStateShard) -> bool:
        if shard.has_to_forget_topics:
            shard.has_to_forget_topics = False
            shard.has_to_forget_topics = not await shard.forget_topics(self._is_deleted)
        return not shard.has_to_forget_topics

    def _is_deleted(self, key: SharePartitionKey) -> bool:
        # The image never goes back, and a state is accepted only for an existing topic.
        return self._topics.topic_name(key.topic_id) is None

    # --- requests

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> ErrorCode:
        """InitializeShareGroupState, one partition."""

        def decide(state: ShareSnapshot | None) -> Change:
            return initialized(state, state_epoch, start_offset, now_ms=self._runtime.clock.wall_ms())

        return await self._change(key, decide)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareSnapshot | ErrorCode:
        """ReadShareGroupState, one partition. A higher leader epoch is durable before the answer."""
        error = await self._change(key, lambda state: read(state, leader_epoch))
        if error is not ErrorCode.NONE:
            return error
        shard = self._shard(key)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.state(key) or ErrorCode.INVALID_REQUEST

    async def write(self, key: SharePartitionKey, request: WriteRequest) -> ErrorCode:
        """WriteShareGroupState, one partition."""
        return await self._change(key, lambda state: written(state, request))

    async def delete(self, key: SharePartitionKey) -> ErrorCode:
        """DeleteShareGroupState, one partition."""
        shard = self._shard(key)
        if isinstance(shard, ErrorCode):
            return shard
        return await shard.delete(key) if self._exists(key) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def summary(self, key: SharePartitionKey) -> ShareSnapshot | ErrorCode:
        """ReadShareGroupStateSummary, one partition; `NO_STATE` if there is no state."""
        shard = self._shard(key)
        if isinstance(shard, ErrorCode):
            return shard
        if not self._exists(key):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return shard.state(key) or NO_STATE

    async def _change(self, key: SharePartitionKey, decide: Decide) -> ErrorCode:
        shard = self._shard(key)
        if isinstance(shard, ErrorCode):
            return shard
        return await shard.change(key, partial(self._decide, key, decide))

    def _decide(self, key: SharePartitionKey, decide: Decide, state: ShareSnapshot | None) -> Change:
        change = decide(state)
        is_refused = isinstance(change, ErrorCode) and change is not ErrorCode.NONE
        return change if is_refused or self._exists(key) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _shard(self, key: SharePartitionKey) -> ShareStateShard | ErrorCode:
        if key.partition < 0 or not fits_record(key.group_id):
            return ErrorCode.INVALID_REQUEST
        return self.shards.of(str(key))

    def _exists(self, key: SharePartitionKey) -> bool:
        name = self._topics.topic_name(key.topic_id)
        count = None if name is None else self._topics.partition_count(name)
        return count is not None and key.partition < count
