"""Records of `__share_group_state`, decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ponor_broker.coordination.share_persister import SharePartitionKey, StateBatch

NO_OFFSET: Final = -1
NO_COUNT: Final = -1
NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class ShareSnapshot:
    """The whole state of one share partition.

    Attributes:
        snapshot_epoch: number of the snapshot; later updates have the same number.
        leader_epoch: highest leader epoch of a read; writes with a lower one are fenced. −1 if no leader has
            read the state.
        start_offset: −1 if no leader has chosen it yet.
        delivery_complete_count: final records at or above `start_offset`; −1 if unknown.
        batches: ordered, without overlaps; see `batches.py`.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_ms: int
    write_ms: int
    batches: tuple[StateBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareUpdate:
    """A change of the state before it; `start_offset` −1 keeps the start offset."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareEntry:
    """A share partition with a snapshot or an update; a value of None is a tombstone."""

    key: SharePartitionKey
    value: ShareSnapshot | ShareUpdate | None
