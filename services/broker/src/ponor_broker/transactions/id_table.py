"""The transactional ids of one shard, and the memory budget of all ids of a broker.

Counts are updated by difference, so the cost of a request does not depend on the number of ids.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ponor_runtime.telemetry import Counter

from ponor_broker.transactions.records import TransactionRecord, TransactionState
from ponor_broker.transactions.settings import TransactionSettings
from ponor_broker.transactions.transaction import Transaction

ID_BYTES: Final = 1_500
"""Memory of a transactional id without its name and partitions, with a write in flight and a timer."""
PARTITION_BYTES: Final = 300
"""Memory of a partition in a transaction, in the state and in the write in flight."""
ROOM_AGAIN: Final = 0.9
"""After a logged refusal, memory must fall below this fraction of the bound before another is logged."""

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class HeldId:
    """A transactional id in the memory of a shard."""

    transactional_id: str
    transaction: Transaction
    counted_bytes: int = 0
    counted_state: TransactionState | None = None


class TransactionBudget:
    """Memory of all transactional ids of a broker, against `transactions_memory_bytes_max`."""

    def __init__(self, settings: TransactionSettings, refused: Counter) -> None:
        self._bytes_max = settings.transactions_memory_bytes_max
        self._refused = refused
        self._is_full = False
        self.by_state = dict.fromkeys(TransactionState, 0)
        self.size_bytes = 0

    def admits(self, more_bytes: int) -> bool:
        """Return whether the bound allows this many more bytes. Count every refusal; after a logged refusal,
        log no other until memory falls below `ROOM_AGAIN`.
        """
        if self.size_bytes + more_bytes <= self._bytes_max:
            return True
        self._refused.add()
        if not self._is_full:
            self._is_full = True
            _LOG.warning(
                "refusing new transactional ids and partitions of transactions: they take %d bytes, and more "
                "would exceed transactions_memory_bytes_max; raise this setting",
                self.size_bytes,
            )
        return False

    def recount(self, held: HeldId) -> None:
        """Count the current memory of an id instead of its previous memory."""
        record = held.transaction.record
        partitions = 0 if record is None else len(record.partitions)
        size_bytes = ID_BYTES + len(held.transactional_id) + PARTITION_BYTES * partitions
        self._replace(held, size_bytes, held.transaction.state)

    def forget(self, held: HeldId) -> None:
        """Subtract the memory of a removed id."""
        self._replace(held, 0, None)

    def _replace(self, held: HeldId, size_bytes: int, state: TransactionState | None) -> None:
        self.size_bytes += size_bytes - held.counted_bytes
        held.counted_bytes = size_bytes
        if state is not held.counted_state:
            for one, change in ((held.counted_state, -1), (state, 1)):
                if one is not None:
                    self.by_state[one] += change
            held.counted_state = state
        if self.size_bytes < ROOM_AGAIN * self._bytes_max:
            self._is_full = False


class IdTable:
    """The ids of one shard."""

    def __init__(self, settings: TransactionSettings, budget: TransactionBudget) -> None:
        self._partitions_max = settings.transaction_partitions_max
        self._ids: dict[str, HeldId] = {}
        self.budget = budget

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[HeldId]:
        return iter(list(self._ids.values()))

    def __contains__(self, held: HeldId) -> bool:
        return self._ids.get(held.transactional_id) is held

    def get(self, transactional_id: str) -> HeldId | None:
        """Return an id, by name."""
        return self._ids.get(transactional_id)

    def add(self, transactional_id: str, record: TransactionRecord | None = None) -> HeldId:
        """Add an id; `record` is its state in the log."""
        assert transactional_id not in self._ids
        held = HeldId(transactional_id, Transaction(self._partitions_max, record))
        self._ids[transactional_id] = held
        self.budget.recount(held)
        return held

    def remove(self, held: HeldId) -> None:
        """Remove an id."""
        assert held in self
        del self._ids[held.transactional_id]
        self.budget.forget(held)
