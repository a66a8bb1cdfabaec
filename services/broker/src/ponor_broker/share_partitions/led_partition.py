"""A share partition at the leader of its topic partition: memory, writes, waiting requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.tasks import Wake
from ponor_runtime.turns import Steps

from ponor_broker.coordination.share_persister import SharePartitionKey, SharePersister, StateSummary
from ponor_broker.partitions.partition import Partition
from ponor_broker.share_partitions.acknowledgement import (
    PART_OFFSETS_MAX,
    AcknowledgedBatch,
    AcknowledgementError,
    in_parts,
)
from ponor_broker.share_partitions.fetched_batches import FetchedBatch
from ponor_broker.share_partitions.runs import NO_WRITE
from ponor_broker.share_partitions.settings import GroupRules
from ponor_broker.share_partitions.share_partition import AcquiredRange, AcquireLimits, SharePartition

_LOG = logging.getLogger(__name__)
PARTITION_BYTES: Final = 2_048
"""Memory of a share partition without records in flight."""
RUN_BYTES: Final = 240
FENCED: Final = frozenset({ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH})
_PASSED_ON: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)

Watcher: TypeAlias = Callable[[], None]
"""Called when a member may be able to acquire records, or the share partition was closed."""


class LedSharePartition:
    """One share partition between its load and its end. All methods run on the event-loop thread.

    Attributes:
        key: group, topic and partition.
        partition: the topic partition.
        state: the state machine; None until the durable state was read.
        state_epoch: the epoch of that state.
        is_closed: whether the memory was dropped. Requests must look the share partition up again.
        is_reading: whether a request reads records from objects, which the others must not read too.
        is_unused: whether the group's last session at this broker has ended.
        is_comparing: whether members get no records until the memory was compared with the durable state.
        is_comparison_due: whether a session began after the newest comparison began.
        compared_ms: when the state was read, or members last began or ended to wait for a comparison.
        retry: wakes the load, which pauses after an error.
        timer_ends_ms: when the timer of the locks fires; None if it is not set.
        size_bytes: the memory that is charged.
    """

    __slots__ = (
        "_answers",
        "_durable_start",
        "_watchers",
        "compared_ms",
        "is_closed",
        "is_comparing",
        "is_comparison_due",
        "is_reading",
        "is_unused",
        "is_writing",
        "key",
        "partition",
        "retry",
        "size_bytes",
        "state",
        "state_epoch",
        "timer_ends_ms",
    )

    def __init__(self, key: SharePartitionKey, partition: Partition, clock: Clock) -> None:
        self.key = key
        self.partition = partition
        self.retry = Wake(clock)
        self.state: SharePartition | None = None
        self.state_epoch = 0
        self.is_closed = self.is_reading = self.is_unused = self.is_writing = False
        self.is_comparing = self.is_comparison_due = False
        self.compared_ms = 0
        self.timer_ends_ms: int | None = None
        self.size_bytes = PARTITION_BYTES
        self._answers: dict[int, list[asyncio.Future[ErrorCode]]] = {}
        """Acknowledgements that wait for a write, by its number."""
        self._watchers: dict[Watcher, None] = {}
        self._durable_start = 0

    def loaded(self, state: SharePartition, now_ms: int) -> None:
        """Begin with the durable state."""
        self.state, self.compared_ms = state, now_ms
        self._durable_start = state.start_offset
        self.wake()

    def compared(self, now_ms: int) -> None:
        """Let members get records again, if they wait for a comparison."""
        if self.is_comparing:
            self.is_comparing, self.compared_ms = False, now_ms
            self.wake()

    def is_replaced_by(self, durable: StateSummary) -> bool:
        """Whether the durable state is not the one of which this is the memory: the group's offsets were
        reset, or the group was deleted and created again.
        """
        # A state that was created again can have the epoch of the former one. Then no leader has read it, or
        # its start is a lower one.
        return (
            durable.state_epoch != self.state_epoch
            or durable.leader_epoch != self.partition.leader_epoch
            or durable.start_offset < self._durable_start
        )

    # Waiting requests

    def watch(self, watcher: Watcher) -> None:
        """Call back when something changed for a member that waits for records."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Stop calling back."""
        self._watchers.pop(watcher, None)

    def wake(self) -> None:
        """Make waiting requests look again."""
        for watcher in list(self._watchers):
            watcher()

    # Records

    def fetch_offset(self, in_flight_max: int) -> int | None:
        """Return where a read must begin that may give a member records; None if there is nothing to read
        now: the records in flight are all taken, or the log has no further ones.
        """
        if self.state is None or self.is_reading or self.is_closed or self.is_comparing:
            return None
        self.state.advance_start(self.partition.log_start_offset)
        if not self.state.may_acquire(in_flight_max):
            return None
        offset = self.state.fetch_offset
        # After a loss of data, the durable state may be ahead of the log.
        return offset if offset < self.partition.high_watermark else None

    def acquire(
        self,
        member_id: str,
        read_offset: int,
        fetched: Iterable[FetchedBatch],
        limits: AcquireLimits,
        rules: GroupRules,
        now_ms: int,
    ) -> list[AcquiredRange]:
        """Give a member records of a read; nothing if the memory was dropped during the read."""
        if self.state is None or self.is_closed:
            return []
        return self.state.acquire(member_id, read_offset, fetched, limits, rules.delivery, now_ms)

    def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgedBatch], rules: GroupRules, now_ms: int
    ) -> Steps[list[asyncio.Future[ErrorCode]]]:
        """Apply acknowledgements, many of them in several steps. The returned futures resolve when they are
        durable, or with the error.

        All are checked before the first one is applied. If another request or an expired lock takes records
        between two steps, some may be applied although the others are refused.

        Raises:
            AcknowledgementError: they are refused.
        """
        state = self.state
        assert state is not None
        start_offset = state.start_offset
        if sum(last - max(first, start_offset) + 1 for first, last, _ in batches) > PART_OFFSETS_MAX:
            for part in in_parts(batches, start_offset):
                self._check_open()
                state.check(member_id, part)
                yield
        answers: dict[int, asyncio.Future[ErrorCode]] = {}
        for number, part in enumerate(in_parts(batches, start_offset)):
            if number:
                yield
            self._check_open()
            write = state.acknowledge(member_id, part, rules.delivery, now_ms)
            if write != NO_WRITE and write not in answers:
                answers[write] = asyncio.get_running_loop().create_future()
                self._answers.setdefault(write, []).append(answers[write])
        return list(answers.values())

    def _check_open(self) -> None:
        if self.is_closed:
            raise AcknowledgementError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "the broker no longer leads the partition; repeat the request",
            )

    def release(self, member_id: str, rules: GroupRules) -> None:
        """Release all records of a member whose session ended."""
        if self.state is not None and not self.is_closed:
            self.state.release(member_id, rules.delivery.deliveries_max)

    # Writes

    async def write_all(self, persister: SharePersister) -> bool:
        """Write until everything is written, one write at a time; return False if a newer leader or a reset
        has fenced this one, or the state does not exist any more.
        """
        state = self.state
        assert state is not None
        while state.needs_write:
            write = state.begin_write()
            code = await persister.write(
                self.key,
                state_epoch=self.state_epoch,
                leader_epoch=self.partition.leader_epoch,
                start_offset=write.start_offset,
                delivery_complete_count=write.delivery_complete_count,
                batches=write.batches,
            )
            if self.is_closed:
                return True
            if code is not ErrorCode.NONE:
                _LOG.warning("writing the state of share partition %s failed: %s", self.key, code.name)
            else:
                self._durable_start = max(self._durable_start, write.start_offset)
            number = state.end_write(is_durable=code is ErrorCode.NONE)
            for answer in self._answers.pop(number, ()):
                if not answer.done():
                    answer.set_result(_shown(code))
            if code not in {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
                return False
            self.wake()
        return True

    def close(self) -> None:
        """Drop the memory: waiting acknowledgements are refused, waiting requests look again."""
        self.is_closed = True
        self.retry.set()
        answers, self._answers = self._answers, {}
        for waiting in answers.values():
            for answer in waiting:
                if not answer.done():
                    answer.set_result(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.wake()


def _shown(code: ErrorCode) -> ErrorCode:
    """Return the code for the member, as in Kafka."""
    if code in FENCED:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code if code in _PASSED_ON else ErrorCode.COORDINATOR_NOT_AVAILABLE
