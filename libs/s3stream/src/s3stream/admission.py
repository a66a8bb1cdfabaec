"""Admission of appends. While memory and log have room, an append is admitted immediately. Otherwise it waits
in a bounded queue; if that is full, it is refused.

A waiting append counts against the log cache's budget from the moment it is queued.
"""

from __future__ import annotations

from collections import deque

from s3stream.errors import AppendBackpressureError
from s3stream.group_commit import GroupCommit, PendingAppend
from s3stream.log_cache import LogCache
from s3stream.settings import RECORD_OVERHEAD_BYTES, StorageSettings


class Admission:
    """Admits appends in order."""

    def __init__(
        self, *, cache: LogCache, commit: GroupCommit, settings: StorageSettings, record_bytes_max: int
    ) -> None:
        self._cache = cache
        self._commit = commit
        self._bytes_max = settings.log_cache_bytes_max
        self._direct_bytes_max = settings.direct_bytes_max
        self._record_bytes_max = min(settings.append_bytes_max, record_bytes_max)
        assert 0 < self._record_bytes_max <= self._direct_bytes_max <= self._bytes_max
        self._waiting: deque[PendingAppend] = deque()
        self._waiting_bytes = 0

    @property
    def record_bytes_max(self) -> int:
        """The largest record (header included) that both the log cache and the write-ahead log accept."""
        return self._record_bytes_max

    @property
    def waiting(self) -> int:
        """Number of waiting appends."""
        return len(self._waiting)

    def charge(self, size_bytes: int) -> bool:
        """Charge an append of this many encoded bytes.

        Returns:
            Whether the caller may add it to the log immediately; otherwise the caller must call `wait`.

        Raises:
            AppendBackpressureError: the memory or the queue is full; nothing is charged.
            ValueError: the record is larger than the log cache or the write-ahead log accepts.
        """
        cache, commit = self._cache, self._commit
        charge_bytes = size_bytes + RECORD_OVERHEAD_BYTES
        if size_bytes <= commit.room_bytes and size_bytes <= self._record_bytes_max and not self._waiting:
            # The common case, in which nothing has to be evicted. This inlines `LogCache.reserve`.
            total_bytes = cache.charged_bytes + charge_bytes
            if total_bytes <= self._direct_bytes_max:
                cache.charged_bytes = total_bytes
                return True
        self._check_size(size_bytes)
        if (
            not self._waiting
            and commit.has_room(size_bytes)
            and cache.reserve(charge_bytes, within_bytes=self._direct_bytes_max)
        ):
            return True
        if self._waiting_bytes + charge_bytes > self._bytes_max - self._direct_bytes_max or not cache.reserve(
            charge_bytes, within_bytes=self._bytes_max
        ):
            raise AppendBackpressureError(
                f"{cache.pinned_bytes} of {self._bytes_max} bytes of the log cache wait for the"
                f" write-ahead log or for upload, and {len(self._waiting)} appends wait for room;"
                " try again later"
            )
        return False

    def charge_unconditionally(self, size_bytes: int) -> None:
        """Charge the append of an upload hook, even above the budget. The append belongs to a block whose
        upload will free memory.

        Raises:
            ValueError: as `charge`; nothing is charged.
        """
        self._check_size(size_bytes)
        self._cache.charge(size_bytes + RECORD_OVERHEAD_BYTES)

    def wait(self, append: PendingAppend) -> None:
        """Queue an append that was charged."""
        assert append[2] <= self._record_bytes_max
        self._waiting.append(append)
        self._waiting_bytes += append[2] + RECORD_OVERHEAD_BYTES

    def next_admitted(self, *, unconditionally: bool = False) -> PendingAppend | None:
        """Return the oldest waiting append, if the log can accept it now."""
        if not self._waiting:
            return None
        size_bytes = self._waiting[0][2]
        if not unconditionally and not (self._commit.has_room(size_bytes) and self._fits_direct(size_bytes)):
            return None
        self._waiting_bytes -= size_bytes + RECORD_OVERHEAD_BYTES
        assert self._waiting_bytes >= 0
        return self._waiting.popleft()

    def abandon(self) -> list[PendingAppend]:
        """Remove all waiting appends, because no append will be admitted."""
        abandoned, self._waiting, self._waiting_bytes = list(self._waiting), deque(), 0
        return abandoned

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._record_bytes_max:
            raise ValueError(
                f"a record of {size_bytes} bytes exceeds the limit of {self._record_bytes_max}"
                " bytes that the log cache and the write-ahead log set; raise"
                " log_cache_bytes_max and wal_bytes_max"
            )

    def _fits_direct(self, size_bytes: int) -> bool:
        """Whether the oldest waiting append fits within `direct_bytes_max`, not counting the charges of
        the appends behind it.
        """
        others_bytes = self._waiting_bytes - size_bytes - RECORD_OVERHEAD_BYTES
        return (
            self._cache.evict_to(self._direct_bytes_max + others_bytes)
            <= self._direct_bytes_max + others_bytes
        )
