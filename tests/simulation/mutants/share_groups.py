"""Planted bugs of share groups, and their replacements."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from ponor_broker.coordination.share_persister import DeliveryState
from ponor_broker.share_partitions import share_partition
from ponor_broker.share_partitions.acknowledgement import AcknowledgedBatch, AcknowledgementError
from ponor_broker.share_partitions.runs import Run, durable
from ponor_broker.share_partitions.share_partition import SharePartition
from ponor_broker.share_state.records import ShareSnapshot, ShareUpdate
from ponor_broker.share_state.shard import Record, ShareStateShard
from ponor_broker.share_state.state_table import HeldState
from ponor_kafka.errors import ErrorCode

from tests.simulation.mutants.mutant import Catch, Mutant, Patch, Suite, method, used_in

_durable = durable
_expire = SharePartition.expire
_acquire = Run.acquire
LONG_MS: Final = 60_000
_append = ShareStateShard._append


def checked_without_holder(self: SharePartition, _: str, batch: AcknowledgedBatch) -> None:
    """`SharePartition._check_held`."""
    if batch.last_offset >= self.end_offset:
        raise AcknowledgementError(ErrorCode.INVALID_REQUEST, "")
    for run in self.runs.within(max(batch.first_offset, self.start_offset), batch.last_offset):
        if run.is_final or run.target is not None:
            raise AcknowledgementError(ErrorCode.INVALID_RECORD_STATE, "")


def updates_only_in_memory(
    self: ShareStateShard, held: HeldState, record: Record, after: ShareSnapshot | None
) -> asyncio.Future[ErrorCode]:
    """`ShareStateShard._append`."""
    if not isinstance(record, ShareUpdate):
        return _append(self, held, record, after)
    self._apply(held, record, after)
    write: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    write.set_result(ErrorCode.NONE)
    return write


def durable_without_count(run: Run) -> tuple[DeliveryState, int]:
    """`durable`."""
    return _durable(run)[0], 0


def acquire_again(self: Run, member_id: str, lock_ends_ms: int) -> None:
    """`Run.acquire`."""
    if self.state is DeliveryState.ACQUIRED:
        self.end(DeliveryState.AVAILABLE)
    _acquire(self, member_id, lock_ends_ms)


def is_available_to_all(self: Run) -> bool:
    """`Run.is_available`."""
    return self.state in {DeliveryState.AVAILABLE, DeliveryState.ACQUIRED} and self.target is None


def expire_all(self: SharePartition, now_ms: int, deliveries_max: int) -> int:
    """`SharePartition.expire`."""
    return _expire(self, now_ms + LONG_MS, deliveries_max)


SHARE_MUTANTS: Iterable[Mutant] = (
    Mutant(
        "share_lock_not_checked",
        "a leader accepts acknowledgements of records that another member holds",
        (method(SharePartition._check_held, checked_without_holder),),
        (Catch(Suite.SWARM, "invariant 6[234] ", 54),),
    ),
    Mutant(
        "share_acquired_twice",
        "a leader delivers records that a member holds",
        (method(Run.acquire, acquire_again), Patch(Run, "is_available", property(is_available_to_all))),
        (Catch(Suite.SWARM, "invariant 62 ", 28),),
    ),
    Mutant(
        "share_locks_end_together",
        "when a lock expires, all locks of the share partition end",
        (method(SharePartition.expire, expire_all),),
        (Catch(Suite.SWARM, "invariant 62 ", 28),),
    ),
    Mutant(
        "share_count_lost_in_handoff",
        "a leader does not write the delivery counts, so that the next leader counts from zero",
        used_in("durable", durable_without_count, share_partition),
        (Catch(Suite.SWARM, "invariant 64 ", 32),),
    ),
    Mutant(
        "share_answered_before_durable",
        "the share coordinator answers updates of a state that are only in its memory",
        (method(ShareStateShard._append, updates_only_in_memory),),
        (Catch(Suite.SWARM, "invariant 6[345] ", 28),),
    ),
)
