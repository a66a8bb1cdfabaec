"""Sealing of the active block: triggers, upload hooks, and which data of a sealed block is carried over.

Triggers are size, age, pressure on memory or on the write-ahead log, and force. No trigger fires without
data to upload, so an idle node sends no requests.

Before a block is sealed, the hooks of streams with new data in it append small records (such as a snapshot of
producer state), over as many turns of the event loop as they need. The cut follows immediately after the
newest record submitted to the log, so one block contains the data, the hooks' records and nothing later. Data
precedes its description in the log, so a snapshot never describes data that a crash could lose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId

from s3stream.log_cache import LogCache, SealedBlocks
from s3stream.open_stream import OpenStream
from s3stream.settings import StorageSettings
from s3stream.upload_plan import UploadPlan, plan_upload
from s3stream.wal import WriteAheadLog

HOOKS_PER_TURN: Final = 64
"""Upload hooks that run in one turn of the event loop; each takes 50 to 100 microseconds."""
HOOK_STEPS_PER_TURN: Final = 2
"""Hook calls in one turn that return True because the hook has more work."""
HOOK_BYTES_PER_TURN: Final = 256 << 10
"""Bytes that hooks append in one turn; the last record may exceed it."""


class SealReason(Enum):
    """Why a block is sealed. Only `SIZE` allows a small rest to be carried."""

    SIZE = "size"
    AGE = "age"
    PRESSURE = "pressure"
    FORCE = "force"


class SealTriggers:
    """Decides from the state of the log cache whether a block is due."""

    def __init__(
        self, *, cache: LogCache, wal: WriteAheadLog, clock: Clock, settings: StorageSettings
    ) -> None:
        self._cache = cache
        self._wal = wal
        self._clock = clock
        self._settings = settings
        self._interval_ns = settings.upload_interval_ms * 1_000_000
        self._sealed_ns = clock.monotonic_ns()

    def note_sealed(self) -> None:
        """Record the time of a seal."""
        self._sealed_ns = self._clock.monotonic_ns()

    def size_reached(self) -> bool:
        """Whether the active block is full."""
        active = self._cache.active
        return (
            active.size_bytes >= self._settings.upload_size_bytes
            or len(active.runs) >= self._settings.block_streams_max
        )

    def pressure(self) -> bool:
        """Whether memory or log is so full of data not yet uploaded that a block should be sealed."""
        if not self._cache.active.runs and self._cache.carried is None:
            return False
        return self._cache.pinned_bytes >= self._settings.pressure_bytes or self._wal.needs_upload

    def due(self, *, pipeline_idle: bool) -> SealReason | None:
        """Return the reason to seal now, if any. The caller checks for `FORCE`.

        While uploads are in flight, pressure does not seal: the end of these uploads relieves it,
        and a seal would only create smaller objects.
        """
        if self.size_reached():
            return SealReason.SIZE
        if pipeline_idle and self.pressure():
            return SealReason.PRESSURE
        oldest_ns = self._oldest_ns()
        if oldest_ns is not None and self._clock.monotonic_ns() - oldest_ns >= self._interval_ns:
            return SealReason.AGE
        return None

    def next_due_s(self) -> float | None:
        """Seconds until age is a reason to seal; None while no data ages."""
        oldest_ns = self._oldest_ns()
        if oldest_ns is None:
            return None
        return max(oldest_ns + self._interval_ns - self._clock.monotonic_ns(), 0) / 1e9

    def _oldest_ns(self) -> int | None:
        """Return when the active block, or without new data the carried block, began to age.

        Carried records are uploaded with the active block, so they wait for at most two intervals.
        Sealing because of their age alone would split a block that fills within two intervals and
        cost the object that carrying saves. Their age therefore counts from the last seal.
        """
        if self._cache.active.runs:
            return self._cache.active.oldest_ns
        if self._cache.carried is None:
            return None
        return max(self._cache.carried.oldest_ns, self._sealed_ns)

    def may_carry(self, reason: SealReason) -> bool:
        """Whether the reason and the log allow a small rest to be carried."""
        return reason is SealReason.SIZE and self._wal.may_carry


class UploadHooks:
    """Streams whose hooks must run before the next seal, in the order of their first append since
    the hook's last run.
    """

    def __init__(self) -> None:
        self._waiting: deque[OpenStream] = deque()
        self._bytes_this_turn = 0
        self.running = False

    def __len__(self) -> int:
        return len(self._waiting)

    def note_append(self, stream: OpenStream) -> None:
        """Record new data of a stream with a hook. Appends of hooks do not count; otherwise an idle
        node would never become idle.
        """
        if not stream.awaits_hook and not self.running:
            stream.awaits_hook = True
            self._waiting.append(stream)

    def note_bytes(self, size_bytes: int) -> None:
        """Record that a hook appends this many bytes. Their encoding and writing takes time of the same
        turn.
        """
        self._bytes_this_turn += size_bytes

    def run_some(self) -> int:
        """Run waiting hooks within the limits of one turn of the event loop; return how many completed."""
        finished = steps = 0
        self._bytes_this_turn = 0
        self.running = True
        try:
            while (
                self._waiting
                and finished < HOOKS_PER_TURN
                and steps < HOOK_STEPS_PER_TURN
                and self._bytes_this_turn < HOOK_BYTES_PER_TURN
            ):
                stream = self._waiting.popleft()
                if stream.upload_hook is not None and stream.upload_hook():
                    steps += 1
                    self._waiting.append(stream)
                else:
                    finished += 1
                    stream.awaits_hook = False
        finally:
            self.running = False
        return finished

    def forget(self, stream: OpenStream) -> None:
        """Remove a closed stream."""
        stream.upload_hook = None


def plan_sealed(
    sealed: SealedBlocks,
    *,
    is_deleted: Callable[[StreamId], bool],
    may_carry: bool,
    expired_before_ns: int,
    settings: StorageSettings,
) -> UploadPlan:
    """Decide what to do with sealed blocks: drop data of deleted streams, carry a small and young
    rest if allowed.

    Args:
        sealed: the blocks.
        is_deleted: whether a stream was deleted.
        may_carry: see `SealTriggers.may_carry`.
        expired_before_ns: records older than this are not carried.
        settings: storage settings.
    """
    pieces = [piece for piece in sealed.pieces() if not is_deleted(piece.stream_id)]

    def plan(*, carry: bool) -> UploadPlan:
        return plan_upload(
            pieces,
            split_size_bytes=settings.split_size_bytes,
            commit_ranges_max=settings.commit_ranges_max,
            set_object_streams_max=settings.set_object_streams_max,
            small_rest_bytes_max=settings.small_rest_bytes_max,
            may_carry=carry,
        )

    planned = plan(carry=may_carry)
    if any(sealed.oldest_ns_of(piece.stream_id) <= expired_before_ns for piece in planned.carried):
        return plan(carry=False)
    return planned
