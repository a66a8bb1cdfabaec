"""Leader epochs: the Kafka offset at which each epoch began (KIP-101, KIP-320).

Acknowledged data is never truncated, so the map only grows. The next epoch replaces an epoch without
records, so that the map grows with data and not with restarts.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import pairwise
from typing import Final

from ponor_partition import meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaKey

_HEADER: Final = struct.Struct(">BI")
_ENTRY: Final = struct.Struct(">iq")
_VERSION: Final = 1
UNKNOWN: Final = (-1, -1)


class LeaderEpochs:
    """(epoch, start offset) pairs, both strictly rising."""

    key: MetaKey = meta_entry.LEADER_EPOCHS

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """The map, oldest epoch first."""
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Start `epoch` at `start_offset`; return whether the map changed."""
        if self._entries and self._entries[-1][0] >= epoch:
            assert self._entries[-1][0] == epoch, f"leader epoch {epoch} is below {self._entries[-1][0]}"
            return False
        while self._entries and self._entries[-1][1] >= start_offset:
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        return True

    def forget_before(self, log_start_offset: int) -> None:
        """Drop epochs whose records were all deleted. From now on, the epoch that contains the log start
        begins there.
        """
        kept = bisect_right(self._entries, log_start_offset, key=lambda entry: entry[1]) - 1
        if kept > 0:
            del self._entries[:kept]
        if self._entries and self._entries[0][1] < log_start_offset:
            self._entries[0] = (self._entries[0][0], log_start_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the epoch under which an offset was written, −1 if unknown."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1]) - 1
        return self._entries[index][0] if index >= 0 else -1

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch: return the largest epoch that is at most the given one, and its end offset;
        (−1, −1) if unknown.

        For an epoch below all known epochs, return the given epoch and the start of the first known epoch, as
        in Kafka.
        """
        if not self._entries or epoch < 0 or epoch > self._entries[-1][0]:
            return UNKNOWN
        if epoch < self._entries[0][0]:
            return epoch, self._entries[0][1]
        index = bisect_right(self._entries, epoch, key=lambda entry: entry[0]) - 1
        end = self._entries[index + 1][1] if index + 1 < len(self._entries) else log_end_offset
        return self._entries[index][0], end

    def snapshot(self) -> bytes:
        """Return the whole state as bytes, for `restore`."""
        return _HEADER.pack(_VERSION, len(self._entries)) + b"".join(
            _ENTRY.pack(*entry) for entry in self._entries
        )

    def restore(self, value: bytes) -> None:
        """Replace the state by a snapshot.

        Raises:
            PartitionCorruptError: the bytes are not a valid snapshot.
        """
        try:
            version, count = _HEADER.unpack_from(value)
            entries = list(_ENTRY.iter_unpack(value[_HEADER.size :]))
        except struct.error as error:
            raise PartitionCorruptError(
                f"LEADER_EPOCHS: {len(value)} bytes are not an epoch map: {error}"
            ) from error
        if version != _VERSION or len(entries) != count:
            raise PartitionCorruptError(
                f"LEADER_EPOCHS: version {version} with {len(entries)} of {count} entries is not valid"
            )
        for before, after in pairwise(entries):
            if before[0] >= after[0] or before[1] >= after[1]:
                raise PartitionCorruptError(f"LEADER_EPOCHS: {before} and {after} are not in order")
        self._entries = entries
