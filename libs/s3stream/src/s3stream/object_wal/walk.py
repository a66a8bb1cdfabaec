"""Reads an abandoned log from the trim point to its end, and makes that end final (rules R2 and R3).

Slots contain data up to the first hole. The walk puts a fence into the hole, create-only. From then
on the old owner can acknowledge no slot at or above the fence, because it acknowledges slots in
order. The fence marks the end regardless of which process put it, so every recoverer finds the same
end. A fence is never deleted.

If a slot above a hole proves that the hole was acknowledged, then an object was lost, and recovery stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from ponor_runtime.object_store import ObjectAlreadyExistsError, ObjectNotFoundError, ObjectStore
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.turns import in_turns

from s3stream.errors import ObjectCorruptError, WalCorruptError, WalNotHeldError
from s3stream.object_wal.hedged_put import Hedge, break_off, ignore_outcome, put_hedged
from s3stream.object_wal.slot import (
    LABEL_BYTES,
    NONCE_BYTES,
    SLOT_BYTES_MAX,
    Label,
    SlotKind,
    decode_label,
    slot_records,
)
from s3stream.object_wal.slot_keys import parse_slot_key, slot_key, wal_prefix
from s3stream.objects.reader import READ_TRIES_MAX
from s3stream.ports import OpenWal
from s3stream.records import StreamRecord

FENCES_AHEAD_MAX: Final = 64
"""Fences put at once against an owner that continues to write: more than its puts in flight."""
_REMEDY: Final = "Neither this slot nor anything after it was recovered; restore the object and recover again"


@dataclass(frozen=True, slots=True)
class ReadSlot:
    """One slot of the log: its records, or None for a fence."""

    label: Label
    records: list[StreamRecord] | None


class WalWalk:
    """One walk over one log. `end_sequence` is set when `slots` is exhausted. `listed` contains the
    slots found by listing, with their sizes.
    """

    def __init__(
        self,
        *,
        store: ObjectStore,
        wal: OpenWal,
        randomness: Randomness,
        telemetry: Telemetry,
        hedge_ms: int,
        reads_in_flight_max: int,
        bytes_in_flight_max: int,
    ) -> None:
        self._store = store
        self._hedge = Hedge(hedge_ms, lambda: True)
        self._name: Final = wal.name
        self._first: Final = wal.trim_sequence
        self._nonce: Final = randomness.token(NONCE_BYTES)
        self._reads_max: Final = reads_in_flight_max
        self._bytes_max: Final = bytes_in_flight_max
        self._reads: dict[int, asyncio.Task[ReadSlot | None]] = {}
        self._next_read = wal.trim_sequence
        self._fences: dict[int, bool] = {}
        self._fence_count = telemetry.counter("ponor_wal_object_puts_total", kind="fence")
        self.listed: dict[int, int] = {}
        self.end_sequence = wal.trim_sequence

    async def slots(self) -> AsyncGenerator[ReadSlot, None]:
        """Yield every data slot from the trim point to the end, in order and verified. A caller
        that stops early must close the iterator.

        Raises:
            WalCorruptError: an acknowledged slot is missing, or a slot is damaged; the message names it.
            ObjectStoreError: the store did not answer within the retries.
        """
        async for info in self._store.list(wal_prefix(self._name)):
            self.listed[parse_slot_key(info.key)[1]] = info.size_bytes
        likely_end = self._first
        while likely_end in self.listed:
            likely_end += 1
        early_fence = asyncio.ensure_future(
            self._fence(likely_end, 1)
        )  # concurrent with the reads; always required
        ahead = 2
        at = self._first
        try:
            while True:
                self._read_ahead(at)
                slot = await self._read(at)
                if slot is None:
                    fencing = (
                        self._fence(at, ahead) if at != likely_end or early_fence.done() else early_fence
                    )
                    if await fencing:
                        break
                    # The slot appeared before the fence, so the owner is still writing.
                    ahead = min(ahead * 2, FENCES_AHEAD_MAX)
                    self._expect(at)
                elif slot.records is None:
                    break
                else:
                    yield slot
                    at += 1
            await self._check_nothing_acknowledged_above(at)
        except ObjectCorruptError as error:
            raise WalCorruptError(f"{error}. {_REMEDY}") from error
        finally:
            for call in (early_fence, *self._reads.values()):
                call.cancel()
                call.add_done_callback(ignore_outcome)
        assert at >= self._first
        self.end_sequence = at

    def _read_ahead(self, at: int) -> None:
        """Start reading the listed slots. The listing is only a hint: slots that it lacks are read
        or fenced one at a time.
        """
        bytes_in_flight = sum(self.listed[number] for number in self._reads if number in self.listed)
        self._next_read = max(self._next_read, at)
        while self._next_read in self.listed and len(self._reads) < self._reads_max:
            size_bytes = self.listed[self._next_read]
            if self._reads and bytes_in_flight + size_bytes > self._bytes_max:
                break
            self._reads[self._next_read] = asyncio.ensure_future(self._get(self._next_read))
            bytes_in_flight += size_bytes
            self._next_read += 1

    async def _read(self, at: int) -> ReadSlot | None:
        read = self._reads.pop(at, None)
        if read is not None:
            return await read
        if at not in self.listed and at not in self._fences:
            return None  # most likely a hole; the create-only put of a fence shows this in one call
        return await self._get(at)

    def _expect(self, at: int) -> None:
        """Treat a slot as listed, because it exists although the listing lacked it."""
        self.listed.setdefault(at, SLOT_BYTES_MAX)
        self._next_read = at

    async def _get(self, at: int) -> ReadSlot | None:
        key = slot_key(self._name, at)
        tries = 0
        while True:
            try:
                data, _ = await self._store.get_tail(key, SLOT_BYTES_MAX)
                label = decode_label(key, self._name, at, data)
                if label.kind is SlotKind.FENCE:
                    return ReadSlot(label, None)
                return ReadSlot(label, await in_turns(slot_records(key, label, data)))
            except ObjectNotFoundError as error:
                if (
                    self._fences.get(at) is False
                ):  # existed a moment ago: another process recovered the log and deletes its slots
                    raise WalNotHeldError(f"{key}: deleted while the log was read") from error
                return None
            except ObjectCorruptError:
                tries += 1
                if tries >= READ_TRIES_MAX:
                    raise

    async def _fence(self, at: int, ahead: int) -> bool:
        """Put a fence into a hole, and into the following positions if the owner continues to
        write. Return whether this walk put the fence into the hole.
        """
        assert ahead > 0
        await self._check_nothing_acknowledged_above(at)
        places = [number for number in range(at, at + ahead) if number not in self._fences]
        put = await asyncio.gather(*map(self._put_fence, places))
        self._fences.update(zip(places, put, strict=True))
        return self._fences[at]

    async def _put_fence(self, at: int) -> bool:
        label = Label(SlotKind.FENCE, self._name, at, 0, self._nonce, 0)
        try:
            key = slot_key(self._name, at)
            await put_hedged(self._store, key, [label.encode()], hedges=[self._hedge], leave=break_off)
        except ObjectAlreadyExistsError:
            return False
        self._fence_count.add(1)
        return True

    async def _has_landed(self, at: int) -> bool:
        """Return whether a data slot exists that the listing did not show. The pages of a listing
        are not one consistent view.
        """
        try:
            _, size_bytes = await self._store.get_tail(slot_key(self._name, at), LABEL_BYTES)
        except ObjectNotFoundError:
            return False
        return size_bytes > LABEL_BYTES  # a fence is not an acknowledged slot

    async def _check_nothing_acknowledged_above(self, hole: int) -> None:
        """Check that no later slot proves that the missing one was acknowledged. The highest slot has the
        newest acknowledged sequence.

        Raises:
            WalCorruptError: the store lost the slot.
        """
        above = [at for at, size_bytes in self.listed.items() if at > hole and size_bytes > LABEL_BYTES]
        if not above:
            return
        key = slot_key(self._name, max(above))
        try:
            tail, _ = await self._store.get_tail(key, LABEL_BYTES)
        except ObjectNotFoundError:
            return  # deleted in the meantime: another recoverer finished
        known = decode_label(key, self._name, max(above), tail).acknowledged_sequence
        if known > hole and not await self._has_landed(hole):
            raise WalCorruptError(
                f"{slot_key(self._name, hole)}: this slot of the write-ahead log is missing in"
                f" the store. It was acknowledged: the label of {key} says that {known} slots"
                " were. Nothing after this slot was recovered."
                " Restore the object from an older version or a backup (if the key now has a fence of"
                f" {LABEL_BYTES} bytes, replace the fence) and recover again; if the object is lost,"
                " acknowledged records are lost"
            )
