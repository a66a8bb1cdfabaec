"""Planted bugs of transactions, and their replacements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from ponor_broker.coordination.record_log import RecordLog
from ponor_broker.coordination.record_log import RecordLog as CoordinatorLog
from ponor_broker.groups.offsets import OffsetTable
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.handlers.fetch import committed_reads
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state.producer_state import ProducerStates
from ponor_broker.partitions.transactions.aborted_index import Aborted, AbortedIndex
from ponor_broker.partitions.transactions.open_transactions import ALL_STABLE, OpenTransactions
from ponor_broker.transactions.events import AddRequest, InitRequest
from ponor_broker.transactions.instructions import (
    Instruction,
    SetTimer,
    TimerKind,
    TransactionAnswer,
)
from ponor_broker.transactions.marker_sender import Markers, MarkerSender, Refusals
from ponor_broker.transactions.records import (
    NO_EPOCH,
    NO_TIMESTAMP,
    TransactionEntry,
    TransactionRecord,
    TransactionState,
)
from ponor_broker.transactions.transaction import Transaction
from ponor_broker.transactions.transitions import changed
from ponor_broker.transactions.verification import TransactionVerifier
from ponor_kafka.errors import ErrorCode
from ponor_partition.txn_entry import TxnEntry

from tests.simulation.mutants.mutant import Catch, Mutant, Suite, method, used_in

_loaded = Transaction.loaded
_add = Transaction._add
_send = MarkerSender.send
_replay = RecordLog.replay
_find = AbortedIndex.find
_recover = AbortedIndex.recover
_reset = OpenTransactions.reset
_put_pending = OffsetTable.put_pending
_end_transaction = OffsetTable.end_transaction

FORGOTTEN = 4
"""Entries at the end of a log that a load does not read."""


# The coordinator


def loaded_without_markers(self: Transaction) -> list[Instruction]:
    """`Transaction.loaded`."""
    if self.state.is_prepared:
        return [SetTimer(TimerKind.RETRY, 1)]  # it writes the completion
    return _loaded(self)


def loaded_and_aborted(self: Transaction) -> list[Instruction]:
    """`Transaction.loaded`."""
    if self.state is TransactionState.ONGOING:
        return [SetTimer(TimerKind.TIMEOUT, 1)]
    return _loaded(self)


def keep_epoch(self: Transaction, record: TransactionRecord, request: InitRequest, now_ms: int) -> None:
    """`Transaction._raise_epoch`."""
    after = changed(
        record,
        now_ms,
        state=TransactionState.EMPTY,
        timeout_ms=request.timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
    )
    answer = TransactionAnswer(ErrorCode.NONE, record.producer_id, record.producer_epoch)
    self._write(after, NO_EPOCH, request.request, answer)


def add_and_forget(
    self: Transaction, requests: tuple[AddRequest, ...], record: TransactionRecord, now_ms: int
) -> None:
    """`Transaction._add`."""
    _add(self, requests, changed(record, now_ms, partitions=frozenset()), now_ms)


async def replay_without_end(
    self: RecordLog[Any], pause: Callable[[], Awaitable[None]], transactions: Any = None
) -> AsyncIterator[Any]:
    """`RecordLog.replay`."""
    entries = [entry async for entry in _replay(self, pause, transactions)]
    is_state = bool(entries) and isinstance(entries[0], TransactionEntry)
    for entry in entries[:-FORGOTTEN] if is_state else entries:
        yield entry


# Markers and verification


def complete_before_markers(
    self: MarkerSender,
    shard: int,
    coordinator_epoch: int,
    markers: Markers,
    done: Callable[[Refusals], None],
) -> None:
    """`MarkerSender.send`."""
    _send(self, shard, coordinator_epoch, markers, lambda _: None)
    asyncio.get_running_loop().call_soon(done, {})


def settle_unverified(self: TransactionVerifier[Any], question: Any, _: int | None) -> None:
    """`TransactionVerifier._route`."""
    if not question.is_settled:
        self._settle(question, ErrorCode.NONE, question.batches[0].take_proof())


# Partitions


def update_by_newest(self: OpenTransactions) -> None:
    """`OpenTransactions._update`."""
    newest = next(reversed(self._open.values()), ALL_STABLE)
    self.first_unstable = min([newest, *(one.first_offset for one in self.ending)])


def reset_to_none(self: OpenTransactions, first_offsets: Mapping[int, int]) -> None:
    """`OpenTransactions.reset`."""
    _reset(self, {})


async def recover_without_index(self: AbortedIndex, from_offset: int, replayed: Iterable[TxnEntry]) -> None:
    """`AbortedIndex.recover`."""
    await _recover(self, from_offset, replayed)
    self._complete_from = 0


def find_begun_here(self: AbortedIndex, start: int, end: int) -> Aborted | None:
    """`AbortedIndex.find`."""
    found = _find(self, start, end)
    return found and [one for one in found if one[1] >= start]


def listed_from_end_if_cleaned(partition: Partition, offset: int) -> int:
    """`committed_reads._listed_from`."""
    return partition.last_stable_offset if partition.log.log_meta.cleaned_to else offset


# Groups


def put_visible(
    self: OffsetTable, producer_id: int, partition: tuple[str, int], committed: CommittedOffset | None
) -> None:
    """`OffsetTable.put_pending`."""
    _put_pending(self, producer_id, partition, committed)
    self._put(partition, committed)


def end_as_committed(
    self: OffsetTable, producer_id: int, *, commits: bool, count_max: int | None = None
) -> int:
    """`OffsetTable.end_transaction`."""
    return _end_transaction(self, producer_id, commits=True, count_max=count_max)


TRANSACTION_MUTANTS: Final = (
    Mutant(
        "transaction_aborted_by_failover",
        "A coordinator that loads an open transaction aborts it at once.",
        (method(Transaction.loaded, loaded_and_aborted),),
        (Catch(Suite.SWARM, r"invariant 52", 22),),
    ),
    Mutant(
        "transaction_complete_before_markers",
        "The next transaction may begin before the markers are written, and a marker ends any newer one.",
        (
            method(MarkerSender.send, complete_before_markers),
            method(ProducerStates.check_marker, lambda *_, **__: None),
        ),
        (Catch(Suite.SWARM, r"invariant (48|49|52)", 4),),
    ),
    Mutant(
        "transaction_epoch_not_raised",
        "InitProducerId keeps the epoch, so an earlier producer is not fenced.",
        (method(Transaction._raise_epoch, keep_epoch),),
        (Catch(Suite.SWARM, r"invariant (48|49|52)", 14),),
    ),
    Mutant(
        "transaction_index_lost_by_recovery",
        "After an open, aborted transactions before the checkpoint are not listed.",
        (method(AbortedIndex.recover, recover_without_index),),
        (Catch(Suite.SWARM, r"invariant 49", 14),),
    ),
    Mutant(
        "transaction_index_lost_in_compaction",
        "In a compacted topic, no aborted transactions are listed after the first cleaning.",
        used_in("_listed_from", listed_from_end_if_cleaned, committed_reads),
        (Catch(Suite.SWARM, r"invariant 49", 36),),
    ),
    Mutant(
        "transaction_index_without_earlier",
        "A reader that begins within an aborted transaction does not get its entry.",
        (method(AbortedIndex.find, find_begun_here),),
        (Catch(Suite.SWARM, r"invariant 49", 14),),
    ),
    Mutant(
        "transaction_loaded_from_stale_log",
        "A coordinator does not read the newest records of its log.",
        (method(CoordinatorLog.replay, replay_without_end),),
        (Catch(Suite.SWARM, r"invariant (29|48|49|52|53)", 36),),
    ),
    Mutant(
        "transaction_marker_lost_on_failover",
        "A coordinator that loads a decided transaction completes it without markers.",
        (method(Transaction.loaded, loaded_without_markers),),
        (Catch(Suite.SWARM, r"invariant (48|49|52|53)", 42),),
    ),
    Mutant(
        "transaction_offset_of_aborted",
        "Offsets of an aborted transaction become visible.",
        (method(OffsetTable.end_transaction, end_as_committed),),
        (Catch(Suite.SWARM, r"invariant 51|never transformed", 36),),
    ),
    Mutant(
        "transaction_offset_visible_early",
        "An offset in a transaction is visible before its marker.",
        (method(OffsetTable.put_pending, put_visible),),
        (Catch(Suite.SWARM, r"invariant 51|never transformed", 36),),
    ),
    Mutant(
        "transaction_open_lost_by_recovery",
        "After an open, transactions from before do not hold back the last stable offset.",
        (method(OpenTransactions.reset, reset_to_none),),
        (Catch(Suite.SWARM, r"invariant (48|49)|KeyError\('txn'\)", 52),),
    ),
    Mutant(
        "transaction_partitions_forgotten",
        "A partition that is added to a transaction replaces the partitions before it.",
        (method(Transaction._add, add_and_forget),),
        (Catch(Suite.SWARM, r"invariant (48|49|52|53)", 36),),
    ),
    Mutant(
        "transaction_stable_too_early",
        "The last stable offset is the first offset of the newest open transaction, not of the oldest.",
        (method(OpenTransactions._update, update_by_newest),),
        (Catch(Suite.SWARM, r"invariant (49|50)", 14),),
    ),
    Mutant(
        "transaction_unverified",
        "The coordinator is not asked whether a batch belongs to a transaction.",
        (method(TransactionVerifier._route, settle_unverified),),
        (Catch(Suite.SWARM, r"invariant (48|49|52|53|55)", 14),),
    ),
)
