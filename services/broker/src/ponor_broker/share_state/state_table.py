"""The share partitions of one shard, and the memory budget of all shards of a broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_runtime.telemetry import Counter

from ponor_broker.coordination.share_persister import SharePartitionKey
from ponor_broker.share_state.records import ShareSnapshot

KEY_BYTES: Final = 1_000
"""Memory of a share partition without its group id and batches."""
BATCH_BYTES: Final = 200
"""Memory of a state batch."""
CHAR_BYTES_MAX: Final = 4
"""Largest memory of a character of a group id."""
ROOM_AGAIN: Final = 0.9
"""After a logged refusal, memory must fall below this fraction of the bound before another is logged."""

_LOG = logging.getLogger(__name__)


def size_bytes(key: SharePartitionKey, state: ShareSnapshot | None) -> int:
    """Return the memory of a share partition with this state."""
    if state is None:
        return 0
    return KEY_BYTES + CHAR_BYTES_MAX * len(key.group_id) + BATCH_BYTES * len(state.batches)


@dataclass(slots=True, eq=False)
class HeldState:
    """The durable state of a share partition in memory.

    Attributes:
        state: None until the first record is durable.
        updates: updates since the newest snapshot.
        rewrites: number of rewrites of the log that had begun when the newest snapshot was written.
        write: the result of the write in flight; None if there is none.
    """

    key: SharePartitionKey
    state: ShareSnapshot | None = None
    updates: int = 0
    rewrites: int = 0
    write: asyncio.Future[ErrorCode] | None = None
    charged_bytes: int = 0


class ShareStateBudget:
    """Memory of all share partitions of a broker, against `share_state_memory_bytes_max`."""

    def __init__(self, bytes_max: int, refused: Counter) -> None:
        self._bytes_max = bytes_max
        self._refused = refused
        self._is_full = False
        self.size_bytes = 0

    def admits(self, held: HeldState, after: ShareSnapshot | None) -> bool:
        """Return whether the bound allows this state; a state that does not grow is always allowed. Count
        refusals, and log the first until memory falls below `ROOM_AGAIN`.
        """
        more_bytes = size_bytes(held.key, after) - held.charged_bytes
        if more_bytes <= 0 or self.size_bytes + more_bytes <= self._bytes_max:
            return True
        self._refused.add()
        if not self._is_full:
            self._is_full = True
            _LOG.warning(
                "refusing states of share groups: they take %d bytes, and more would exceed "
                "share_state_memory_bytes_max; raise this setting",
                self.size_bytes,
            )
        return False

    def charge(self, held: HeldState, state: ShareSnapshot | None) -> None:
        """Count this state instead of the one that was counted before."""
        now_bytes = size_bytes(held.key, state)
        self.size_bytes += now_bytes - held.charged_bytes
        held.charged_bytes = now_bytes
        if self.size_bytes < ROOM_AGAIN * self._bytes_max:
            self._is_full = False


class StateTable:
    """The share partitions of one shard."""

    def __init__(self, budget: ShareStateBudget) -> None:
        self.budget: Final = budget
        self._held: dict[SharePartitionKey, HeldState] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldState]:
        return iter(list(self._held.values()))

    def __contains__(self, held: HeldState) -> bool:
        return self._held.get(held.key) is held

    def get(self, key: SharePartitionKey) -> HeldState | None:
        """Return a share partition."""
        return self._held.get(key)

    def get_or_add(self, key: SharePartitionKey) -> HeldState:
        """Return a share partition; add it without a state if necessary."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = HeldState(key)
        return held

    def remove(self, held: HeldState) -> None:
        """Remove a share partition."""
        del self._held[held.key]
        self.budget.charge(held, None)
