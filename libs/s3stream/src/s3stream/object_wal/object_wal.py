"""Write-ahead log in the object store: one writer, one epoch, slots from 0, many puts in flight,
acknowledged in order.

A slot is acknowledged when it and all slots below it are confirmed (rule R2). With `verify`, the writer also
asks the controller before each acknowledgement whether this process still owns its node epoch. This is for
stores that are not proven to support create-only puts. `s3stream.takeover` recovers logs of earlier epochs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import ObjectId
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.randomness import Randomness
from ponor_runtime.tasks import BackgroundTasks, Wake
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.turns import TurnBudget

from s3stream.errors import S3StreamError, StorageFailedError
from s3stream.object_wal.hedging import Hedging
from s3stream.object_wal.pacing import Pacing
from s3stream.object_wal.slot import (
    LABEL_BYTES,
    NONCE_BYTES,
    SLOT_BYTES_MAX,
    Label,
    SlotKind,
    records_in,
)
from s3stream.object_wal.slot_deletion import SlotDeletion
from s3stream.object_wal.slot_put import SlotPut
from s3stream.objects.writer import ObjectWriter
from s3stream.ports import WalManager, WalName
from s3stream.records import StreamRecord
from s3stream.settings import SLOT_RECORD_BYTES_MAX, StorageSettings

LOG = logging.getLogger(__name__)
RECORDS_PER_TURN: Final = 512
SLOT_RECORDS_MAX: Final = 8_192
"""Records of a slot, unless one entry has more. They are sorted in one turn of the event loop,
which takes 10 ms; a slot of 8 MiB could contain 70,000 small ones."""
SLOTS_PER_TURN_MAX: Final = 64
SLOTS_TURN_NS_MAX: Final = 4_000_000
"""A turn of the event loop acknowledges no further slot after one of these bounds. When a slow put ends, all
later slots in flight may be confirmed already, each with thousands of appends."""
CLOSE_WAIT_S: Final = 5.0
"""Longest time that a close waits for the store or the controller. After that, the log stays open, and the
next process recovers what was acknowledged."""
_AWAKE: Final = 0
"""Value of `_sleeps_until_ns` while `_watch` is running, so that no alarm wakes it."""

OnDurable = Callable[[BaseException | None], None]


class _Slot:
    """Entries that share one put."""

    __slots__ = (
        "began_ns",
        "buffers",
        "came_ns",
        "confirmed",
        "record_bytes",
        "sequence",
        "size_bytes",
        "waiters",
    )

    def __init__(self, sequence: int, began_ns: int) -> None:
        self.sequence = sequence
        self.began_ns = self.came_ns = began_ns
        self.buffers: list[Buffer] = []
        self.waiters: list[OnDurable] = []
        self.record_bytes = 0
        self.size_bytes = 0
        self.confirmed = False


class ObjectWal:
    """`WriteAheadLog` in the object store. Create it with `open`, after the controller lists it as
    open (`WalManager.open_wal`).
    """

    gathers = True
    trim_is_recorded = True
    waits_for_space = False
    created = True

    def __init__(
        self,
        *,
        store: ObjectStore,
        name: WalName,
        manager: WalManager,
        settings: StorageSettings,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
        tasks: BackgroundTasks,
        verify: bool,
    ) -> None:
        self.name: Final = name
        self._manager = manager
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._verify: Final = verify
        self._nonce: Final = randomness.token(NONCE_BYTES)
        self._pacing = Pacing(settings.wal_pacing, clock.monotonic_ns())
        self._put = SlotPut(
            store=store,
            clock=clock,
            randomness=randomness,
            telemetry=telemetry,
            tasks=tasks,
            hedging=Hedging(
                self._pacing,
                clock,
                telemetry,
                early_share=settings.wal_hedge_share,
                late_ms=settings.wal_hedge_ms,
                early_bytes_max=settings.wal_slot_bytes_wanted,
            ),
            retry_ms_max=settings.upload_retry_ms_max,
        )
        self._deletion = SlotDeletion(store, name, tasks, telemetry, clock)
        self._waiting: deque[_Slot] = deque()
        """Slots that were not put yet. The last one gathers; the others are full."""
        self._in_flight: deque[_Slot] = deque()
        """Slots whose put has begun and that are not acknowledged, in order. The first ones may be
        confirmed and wait for the verification of the epoch, or for a turn of the event loop."""
        self._acknowledged_below = 0  # slots below are acknowledged, now or in one of the next turns
        self._acknowledges_later = False
        self._turn = TurnBudget(clock, count_max=SLOTS_PER_TURN_MAX, duration_ns_max=SLOTS_TURN_NS_MAX)
        self._retained: deque[tuple[int, int]] = deque()
        """Sequence and size of acknowledged slots from the trim point on."""
        self._retained_bytes = 0
        self._queued_bytes = 0
        self._next_sequence = 0
        self._verifying = False
        self._failure: StorageFailedError | None = None
        self._closed = False
        self._drained = asyncio.Event()
        self._alarm = Wake(clock)
        self._due_ns: int | None = None
        self._sleeps_until_ns: int | None = None
        self._watching: asyncio.Task[None] | None = None
        self._count(telemetry)

    @classmethod
    async def open(
        cls,
        *,
        store: ObjectStore,
        name: WalName,
        manager: WalManager,
        settings: StorageSettings,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
        tasks: BackgroundTasks,
        condition_proven: bool = True,
    ) -> ObjectWal:
        """Begin the log of this process's epoch. Nothing is put before the first append.

        Args:
            store: with retries and limits.
            name: result of `manager.open_wal`.
            manager: closes the log and verifies the epoch.
            settings: sizes and rates; `wal_verify`.
            clock: of this process.
            randomness: source of the nonce and of jitter.
            telemetry: receives the metrics of puts.
            tasks: supervises background tasks.
            condition_proven: a probe confirmed that the store refuses a create-only put of an
                existing key. If False, the epoch is verified before every acknowledgement.
        """
        wal = cls(
            store=store,
            name=name,
            manager=manager,
            settings=settings,
            clock=clock,
            randomness=randomness,
            telemetry=telemetry,
            tasks=tasks,
            verify=settings.wal_verify == "always" or not condition_proven,
        )
        wal._watching = tasks.spawn(wal._watch(), "object wal")
        return wal

    # --- interface for storage

    @property
    def retained_bytes(self) -> int:
        return self._retained_bytes

    @property
    def next_sequence(self) -> int:
        return self._waiting[-1].sequence if self._waiting else self._next_sequence

    @property
    def room_bytes(self) -> int:
        window_room_bytes = self._settings.wal_bytes_max - self._retained_bytes - self._queued_bytes
        if self._queued_bytes == 0:
            return window_room_bytes  # an entry larger than the queue is accepted when the queue is empty
        return min(window_room_bytes, self._settings.wal_queue_bytes_max - self._queued_bytes)

    @property
    def record_bytes_max(self) -> int:
        return SLOT_RECORD_BYTES_MAX

    @property
    def needs_upload(self) -> bool:
        return (
            self._retained_bytes >= self._settings.wal_recovery_bytes_max
            or len(self._retained) >= self._settings.wal_recovery_slots_max
        )

    @property
    def may_carry(self) -> bool:
        return (
            self._retained_bytes <= self._settings.wal_recovery_bytes_max // 4
            and len(self._retained) <= self._settings.wal_recovery_slots_max // 4
        )

    def when_full(self, callback: Callable[[], None]) -> None:
        """Ignore the callback: an object store does not become full."""

    def append(self, buffers: Sequence[Buffer], on_durable: OnDurable) -> int:
        if self._failure is not None or self._closed:
            raise StorageFailedError(str(self._failure or f"{self.name}: the write-ahead log was closed"))
        size_bytes = sum(map(len, buffers))
        assert len(buffers) % 2 == 0, "each record must have a header and a payload"
        assert 0 < size_bytes <= SLOT_RECORD_BYTES_MAX, (
            "the size of the records is not within the limits of admission"
        )
        now_ns = self._clock.monotonic_ns()
        slot = self._waiting[-1] if self._waiting else None
        if (
            slot is None
            or slot.record_bytes + size_bytes > self._settings.wal_slot_bytes_max
            or len(slot.buffers) + len(buffers) > 2 * SLOT_RECORDS_MAX  # header and payload of each record
        ):
            slot = _Slot(self._next_sequence, now_ns)
            self._next_sequence += 1
            self._waiting.append(slot)
        slot.came_ns = now_ns
        slot.buffers.extend(buffers)
        slot.waiters.append(on_durable)
        slot.record_bytes += size_bytes
        self._queued_bytes += size_bytes
        self._pump()
        return slot.sequence

    def hurry(self) -> None:
        if self._waiting:
            self._pacing.hurry()
            self._pump()

    async def recover(self) -> AsyncIterator[tuple[int, StreamRecord]]:
        """Yield nothing: the log of a new epoch is empty."""
        nothing: list[tuple[int, StreamRecord]] = []
        for each in nothing:
            yield each

    def trim(self, before_sequence: int, *, recorded_sequence: int = 0) -> None:
        # Slots may be deleted only after the controller has the trim point in its log (rule R4).
        del before_sequence
        assert 0 <= recorded_sequence <= self._next_sequence
        while self._retained and self._retained[0][0] < recorded_sequence:
            self._retained_bytes -= self._retained.popleft()[1]
        if recorded_sequence:
            self._deletion.delete_below(recorded_sequence)

    async def close(self, *, unneeded: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self._drain()
                if unneeded and self._failure is None:
                    await self._put.finish()  # otherwise a copy could arrive after the deletion
                    await self._manager.close_wal(self.name, self._next_sequence)
                    self._deletion.delete_below(self._next_sequence)
        except (TimeoutError, S3StreamError) as error:
            LOG.warning("%s stays open; it will be recovered: %s: %s", self.name, type(error).__name__, error)
        with suppress(TimeoutError):  # after a timeout, the garbage collector deletes the slots
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self._deletion.finish()
        self._fail(StorageFailedError(f"{self.name}: the write-ahead log was closed"))
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    # --- from gathering to the acknowledgement

    async def _watch(self) -> None:
        """Put slots that become due as time passes."""
        while True:
            self._sleeps_until_ns = self._due_ns
            await self._alarm.wait(self._sleep_s())
            self._sleeps_until_ns = _AWAKE
            self._pump()

    def _sleep_s(self) -> float | None:
        return None if self._due_ns is None else max(self._due_ns - self._clock.monotonic_ns(), 0) / 1e9

    def _pump(self) -> None:
        """Put all slots that are due, and set the time of the next one."""
        self._due_ns = None
        while self._waiting and self._failure is None:
            slot = self._waiting[0]
            now_ns = self._clock.monotonic_ns()
            is_full = len(self._waiting) > 1
            due_ns = self._pacing.due_ns(
                now_ns,
                slot.record_bytes,
                entries=len(slot.waiters),
                began_ns=slot.began_ns,
                came_ns=slot.came_ns,
                is_full=is_full,
            )
            if due_ns is None:
                return  # the next answer to a put calls this method again
            if due_ns > now_ns:
                self._due_ns = due_ns
                if self._sleeps_until_ns is None or due_ns < self._sleeps_until_ns:
                    self._alarm.set()
                return
            self._begin_put(self._waiting.popleft(), now_ns)

    def _begin_put(self, slot: _Slot, now_ns: int) -> None:
        assert not self._in_flight or self._in_flight[-1].sequence + 1 == slot.sequence, (
            "a slot is put out of order"
        )
        self._gather_us.record((now_ns - slot.began_ns) // 1000)
        self._pacing.put(now_ns, slot.record_bytes)
        self._in_flight.append(slot)
        self._tasks.spawn(self._carry(slot, now_ns), "put slot")

    async def _carry(self, slot: _Slot, began_ns: int) -> None:
        try:
            label, buffers = await self._encoded(slot)
            await self._put.put(label, buffers)
        except Exception as error:  # noqa: BLE001 - after any error nothing behind it may be acknowledged
            self._fail(_as_failure(error))
            return
        took_ns = self._clock.monotonic_ns() - began_ns
        self._put_us.record(took_ns // 1000)
        self._puts.add(1)
        slot.confirmed = True
        slot.buffers.clear()
        self._pacing.answered(took_ns, slot.record_bytes)
        if self._verify:
            self._begin_verify()
        else:
            self._acknowledge(self._confirmed_below())
        self._pump()

    async def _encoded(self, slot: _Slot) -> tuple[Label, list[Buffer]]:
        records = sorted(records_in(slot.buffers), key=attrgetter("stream_id"))
        writer = ObjectWriter(ObjectId(slot.sequence), block_bytes_max=self._settings.object_block_bytes_max)
        for first in range(0, len(records), RECORDS_PER_TURN):
            writer.add_run(records[first : first + RECORDS_PER_TURN])
            if first + RECORDS_PER_TURN < len(records):
                await self._clock.sleep(0)
        encoded = writer.finish()
        acknowledged = self._in_flight[0].sequence
        assert acknowledged <= slot.sequence
        label = Label(SlotKind.DATA, self.name, slot.sequence, acknowledged, self._nonce, encoded.size_bytes)
        assert encoded.size_bytes + LABEL_BYTES <= SLOT_BYTES_MAX
        return label, [*encoded.buffers, label.encode()]

    def _confirmed_below(self) -> int:
        """The sequence below which all slots are confirmed."""
        for slot in self._in_flight:
            if not slot.confirmed:
                return slot.sequence
        return self._in_flight[-1].sequence + 1 if self._in_flight else 0

    def _acknowledge(self, below: int) -> None:
        """Acknowledge all slots below `below`, in this and in later turns of the event loop."""
        if below > self._acknowledged_below:
            first, self._acknowledged_below = self._acknowledged_below, below
            self._pacing.acknowledged(
                sum(len(slot.waiters) for slot in self._in_flight if first <= slot.sequence < below)
            )
        if not self._acknowledges_later:
            self._acknowledge_in_turn()

    def _acknowledge_in_turn(self) -> None:
        self._acknowledges_later = False
        while self._in_flight and self._in_flight[0].sequence < self._acknowledged_below:
            if self._turn.is_spent:
                self._acknowledges_later = True
                self._turn.call_later(self._acknowledge_in_turn)
                return
            self._turn.spend()
            slot = self._in_flight.popleft()
            assert slot.confirmed, "a slot is acknowledged before it is confirmed"
            self._queued_bytes -= slot.record_bytes
            assert self._queued_bytes >= 0
            self._retained.append((slot.sequence, slot.record_bytes))
            self._retained_bytes += slot.record_bytes
            self._bytes.add(slot.record_bytes)
            for on_durable in slot.waiters:
                on_durable(None)
        if not self._waiting and not self._in_flight:
            self._drained.set()

    def _begin_verify(self) -> None:
        if not self._verifying and self._confirmed_below() > self._acknowledged_below:
            self._verifying = True
            self._tasks.spawn(self._verify_all(), "verify epoch")

    async def _verify_all(self) -> None:
        """Verify the epoch for everything confirmed so far. Slots confirmed during the request need another
        request.
        """
        try:
            while self._failure is None and (below := self._confirmed_below()) > self._acknowledged_below:
                await self._manager.verify_epoch()
                self._acknowledge(below)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(_as_failure(error))
        finally:
            self._verifying = False

    def _fail(self, failure: StorageFailedError) -> None:
        """Fail all pending entries; nothing more is acknowledged."""
        if self._failure is not None:
            return
        self._failure = failure
        left = [*self._in_flight, *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        for slot in left:
            for on_durable in slot.waiters:
                on_durable(StorageFailedError(str(failure)))
        self._drained.set()

    # --- close

    async def _drain(self) -> None:
        """Return when no slot is pending."""
        while self._failure is None and (self._waiting or self._in_flight):
            self._drained.clear()
            self.hurry()
            await self._drained.wait()

    def _count(self, telemetry: Telemetry) -> None:
        self._puts = telemetry.counter("ponor_wal_object_puts_total", kind="data")
        self._bytes = telemetry.counter("ponor_wal_object_bytes_total")
        self._put_us = telemetry.histogram("ponor_wal_object_put_seconds")
        self._gather_us = telemetry.histogram("ponor_wal_object_gather_seconds")
        telemetry.gauge("ponor_wal_object_slots", lambda: len(self._retained))
        telemetry.gauge("ponor_wal_object_puts_in_flight", lambda: self._pacing.puts_in_flight)


def _as_failure(error: Exception) -> StorageFailedError:
    return (
        error
        if isinstance(error, StorageFailedError)
        else StorageFailedError(f"{type(error).__name__}: {error}")
    )
