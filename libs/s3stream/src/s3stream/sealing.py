"""Sealing of the active block: triggers, upload hooks, and what a sealed block's plan may carry over.

Triggers are size, age, pressure on memory or on the write-ahead log, and force. None fires without data to upload, so
an idle node makes no request.

Before a block is sealed, the hooks of streams with own data in it append small records (such as a snapshot of producer
state), over as many turns of the loop as they need. The cut follows immediately after the newest record handed to the
log, so one block contains the data, the hooks' records and nothing later. Data precedes its description in the log, so
a snapshot never describes data that a crash could lose.
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
"""Upload hooks that run before others get the loop; each takes 50 to 100 microseconds."""
HOOK_STEPS_PER_TURN: Final = 2
"""Calls of hooks that did a part of their work only."""
HOOK_BYTES_PER_TURN: Final = 256 << 10
"""Bytes that hooks append in one turn; one more record may exceed it."""


class SealReason(Enum):
    """Why a block is sealed. Only `SIZE` lets a small rest be carried."""

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
        """Record that a block was sealed now."""
        self._sealed_ns = self._clock.monotonic_ns()

    def size_reached(self) -> bool:
        """The active block is full."""
        active = self._cache.active
        return (
            active.size_bytes >= self._settings.upload_size_bytes
            or len(active.runs) >= self._settings.block_streams_max
        )

    def pressure(self) -> bool:
        """Memory or log are filling with what was not uploaded, and sealing would help."""
        if not self._cache.active.runs and self._cache.carried is None:
            return False
        return self._cache.pinned_bytes >= self._settings.pressure_bytes or self._wal.wants_upload

    def due(self, *, pipeline_idle: bool) -> SealReason | None:
        """Return the reason to seal now, if any, except for force.

        While uploads are in flight, pressure seals nothing: their end relieves it, and a seal would only make smaller objects.
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
        """Seconds until age is a reason; None while nothing ages."""
        oldest_ns = self._oldest_ns()
        if oldest_ns is None:
            return None
        return max(oldest_ns + self._interval_ns - self._clock.monotonic_ns(), 0) / 1e9

    def _oldest_ns(self) -> int | None:
        """The age that counts: of the active block, or of what was carried when nothing new comes.

        Carried records travel with the active block, so they wait for two intervals at most. Their age alone would cut a
        block that fills in two, and cost the object that carrying them saves; nor does it count in the moment between two blocks.
        """
        if self._cache.active.runs:
            return self._cache.active.oldest_ns
        if self._cache.carried is None:
            return None
        return max(self._cache.carried.oldest_ns, self._sealed_ns)

    def may_carry(self, reason: SealReason) -> bool:
        """Whether the block may leave a rest behind, as far as reason and log tell."""
        return reason is SealReason.SIZE and self._wal.may_carry


class UploadHooks:
    """Streams whose hooks must run before the next seal, in the order of their first append since they ran last."""

    def __init__(self) -> None:
        self._waiting: deque[OpenStream] = deque()
        self._bytes_this_turn = 0
        self.running = False

    def __len__(self) -> int:
        return len(self._waiting)

    def note_append(self, stream: OpenStream) -> None:
        """Record new own data of a stream with a hook. Appends of hooks do not count, so that an idle node becomes idle."""
        if not stream.awaits_hook and not self.running:
            stream.awaits_hook = True
            self._waiting.append(stream)

    def note_bytes(self, size_bytes: int) -> None:
        """A hook appends so many bytes: they are encoded, checked and written, which takes time of the same turn."""
        self._bytes_this_turn += size_bytes

    def run_some(self) -> int:
        """Run hooks that wait, as many as may run in one turn of the loop; returns how many came to their end."""
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
        """The stream is closed."""
        stream.upload_hook = None


def plan_sealed(
    sealed: SealedBlocks,
    *,
    is_deleted: Callable[[StreamId], bool],
    may_carry: bool,
    expired_before_ns: int,
    settings: StorageSettings,
) -> UploadPlan:
    """What becomes of sealed blocks: data of deleted streams is dropped, a small and young rest may be carried.

    Args:
        sealed: the blocks.
        is_deleted: by stream id.
        may_carry: see `SealTriggers.may_carry`.
        expired_before_ns: records older than this are not carried.
        settings: sizes.
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
