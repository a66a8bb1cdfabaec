"""One writer of an object WAL: conditions of an acknowledgement, lost or wrong answers, and cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectStoreRefusedError, ObjectStoreSlowDownError
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import StorageFailedError, StreamFencedError
from s3stream.object_wal import object_wal
from s3stream.object_wal.object_wal import SLOT_RECORDS_MAX, ObjectWal
from s3stream.object_wal.pacing import Pacing
from s3stream.object_wal.slot import NONCE_BYTES, Label, SlotKind, decode_label, records_in
from s3stream.object_wal.slot_keys import slot_key
from s3stream.records import StreamRecord
from s3stream.settings import KIB, StorageSettings
from s3stream.stores.metered import Meter, register_cost

from libs.s3stream.tests.cluster_model import NODE
from libs.s3stream.tests.store_rig import Failure, MemoryObjectStore
from libs.s3stream.tests.wal_rigs import ObjectWalRig, append, wal_settings


@pytest.fixture
async def rig() -> AsyncIterator[ObjectWalRig]:
    rig = ObjectWalRig()
    yield rig
    await rig.end()


def record(offset: int, payload: bytes = b"x", stream: int = 5) -> StreamRecord:
    return StreamRecord(StreamId(stream), StreamEpoch(2), offset, 1, 77, payload)


TURNS = 100
"""Turns of the event loop: more than an answer needs to reach its caller. No step in between waits
for time."""


class HeldStore(MemoryObjectStore):
    """Answers of puts wait until the test releases them by sequence. For keys in `lost`, the first
    put is applied and never answered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, asyncio.Event] = {}
        self.lost: set[str] = set()
        self.holds = True
        self.overlapped = 0

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        if key in self.lost:
            self.lost.discard(key)
            await super().put(key, buffers)
            await asyncio.Event().wait()
        if self.holds:
            await self.waiting.setdefault(key, asyncio.Event()).wait()
        await super().put(key, buffers)

    async def let_go(self, key: str) -> None:
        self.waiting.setdefault(key, asyncio.Event()).set()
        while key not in self.objects:
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)


async def held(rig: ObjectWalRig, count: int) -> tuple[ObjectWal, HeldStore, list[asyncio.Future[None]]]:
    """Start this many slots, with one append each."""
    store = HeldStore()
    rig.store = store
    wal = await rig.opened()
    told = []
    for number in range(count):
        told.append(append(wal, record(number))[1])
        while len(store.waiting) <= number:
            await asyncio.sleep(0.001)
    return wal, store, told


async def test_slots_are_acknowledged_in_order_however_their_puts_end(rig: ObjectWalRig) -> None:
    wal, store, told = await held(rig, 4)
    keys = [slot_key(wal.name, number) for number in range(4)]
    for at, done in ((2, 0), (1, 0), (0, 3), (3, 4)):
        await store.let_go(keys[at])
        assert [each.done() for each in told] == [True] * done + [False] * (4 - done)
    await wal.close()


async def test_the_slots_behind_a_slow_one_are_acknowledged_in_turns(
    rig: ObjectWalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 slots with 400 appends each took more than 16 ms, without the work of their partitions."""
    monkeypatch.setattr(object_wal, "SLOTS_TURN_NS_MAX", 0)
    loop, per_turn = asyncio.get_running_loop(), [0]
    wal, store, told = await held(rig, 6)

    def count(_: object) -> None:
        if not per_turn[-1]:
            loop.call_soon(per_turn.append, 0)
        per_turn[-1] += 1

    for one in told:
        one.add_done_callback(count)
    for number in (5, 4, 3, 2, 1, 0):
        assert per_turn == [0]
        await store.let_go(slot_key(wal.name, number))
    assert [one for one in per_turn if one] == [1] * 6
    await wal.close()


async def test_slots_that_wait_for_a_turn_are_acknowledged_before_a_close(
    rig: ObjectWalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_wal, "SLOTS_TURN_NS_MAX", 0)
    wal, store, told = await held(rig, 4)
    store.holds = False
    for number in (3, 2, 1, 0):
        store.waiting[slot_key(wal.name, number)].set()
    while not told[0].done():
        await asyncio.sleep(0)
    assert not told[3].done()
    await wal.close()
    assert all(one.done() and one.exception() is None for one in told)


async def test_a_slot_records_how_many_slots_were_acknowledged_before_it(rig: ObjectWalRig) -> None:
    wal, store, told = await held(rig, 3)
    for number in range(3):
        await store.let_go(slot_key(wal.name, number))
    store.holds = False
    await asyncio.gather(*told)
    await append(wal, record(3))[1]
    known = [
        decode_label("", wal.name, number, store.objects[slot_key(wal.name, number)]).acknowledged_sequence
        for number in range(4)
    ]
    assert known == [0, 0, 0, 3]
    await wal.close()


async def test_a_log_that_waits_for_its_budget_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The due time falls while tokens are added. The log woke itself for each change, with a whole core."""
    runs = 0
    due_ns = Pacing.due_ns

    def counted(self: Pacing, *args: Any, **kwargs: Any) -> int | None:
        nonlocal runs
        runs += 1
        return due_ns(self, *args, **kwargs)

    monkeypatch.setattr(Pacing, "due_ns", counted)
    rig = ObjectWalRig(wal_settings(wal_requests_per_s_max=20.0))
    wal = await rig.opened()
    for number in range(24):
        await append(wal, record(number))[1]
    assert runs < 24 * 6
    await wal.close()
    await rig.end()


async def test_a_lost_answer_is_detected(rig: ObjectWalRig) -> None:
    wal = await rig.opened()
    rig.store.fail("put", Failure(applied=True))
    await append(wal, record(0))[1]
    assert len(rig.store.objects) == 1
    await wal.close()


async def test_failed_puts_are_repeated_without_limit(rig: ObjectWalRig) -> None:
    wal = await rig.opened()
    rig.store.fail("put", *[Failure(ObjectStoreSlowDownError("503"))] * 8)
    rig.store.fail("put", *[Failure(ObjectStoreRefusedError("403"))] * 3)
    await append(wal, record(0))[1]
    await wal.close()
    assert [each.base_offset for each in await rig.left()] == [0]


async def test_a_put_without_an_answer_is_repeated(rig: ObjectWalRig) -> None:
    rig.settings = wal_settings(wal_hedge_ms=20)
    store = HeldStore()
    store.holds = False
    rig.store = store
    wal = await rig.opened()
    store.lost.add(slot_key(wal.name, 0))
    await append(wal, record(0))[1]
    assert sum(value for _, value in rig.runtime.telemetry.counters("ponor_wal_object_hedges_total")) == 1
    await wal.close()


def foreign(wal: ObjectWal, kind: SlotKind, sequence: int = 0) -> bytes:
    return Label(kind, wal.name, sequence, 0, bytes(NONCE_BYTES), 0).encode()


@pytest.mark.parametrize(
    ("kind", "why"), [(SlotKind.FENCE, "the slot has a fence"), (SlotKind.DATA, "same epoch")]
)
async def test_a_slot_of_another_process_ends_the_log(rig: ObjectWalRig, kind: SlotKind, why: str) -> None:
    wal = await rig.opened()
    await append(wal, record(0))[1]
    rig.store.objects[slot_key(wal.name, 1)] = foreign(wal, kind, 1)
    told = [append(wal, record(number))[1] for number in (1, 2, 3)]
    for each in await asyncio.gather(*told, return_exceptions=True):
        assert isinstance(each, StorageFailedError)
        assert why in str(each)
    with pytest.raises(StorageFailedError, match=why):
        append(wal, record(4))
    await wal.close(unneeded=True)
    assert wal.name in rig.cluster.wals, "left to its recoverer"


async def test_a_key_that_was_taken_and_is_absent_is_put_again(rig: ObjectWalRig) -> None:
    """A store may refuse one copy of a put before it shows the other one."""
    wal = await rig.opened()
    key = slot_key(wal.name, 0)
    rig.store.objects[key] = foreign(wal, SlotKind.DATA)
    get_tail, asked = rig.store.get_tail, 0

    async def gone(key: str, length: int) -> tuple[bytes, int]:
        nonlocal asked
        asked += 1
        rig.store.objects.pop(key, None)
        return await get_tail(key, length)

    rig.store.get_tail = gone  # type: ignore[method-assign]
    await append(wal, record(0))[1]
    assert asked == 1
    assert key in rig.store.objects
    await wal.close()


async def test_the_controller_verifies_the_epoch_before_the_acknowledgement(rig: ObjectWalRig) -> None:
    wal = await rig.opened(condition_proven=False)
    steps: list[tuple[str, int]] = []
    rig.cluster.on_step = lambda step: steps.append((step, len(rig.store.objects)))
    told = [append(wal, record(number, bytes(100)))[1] for number in range(10)]
    await asyncio.gather(*told)
    asked = [objects for step, objects in steps if step == "verify"]
    assert asked
    assert all(objects > 0 for objects in asked)
    assert len(asked) <= len(rig.store.objects), "once for all confirmed slots"
    rig.cluster.fence(NODE)
    with pytest.raises(StorageFailedError, match="StreamFencedError"):
        await append(wal, record(10))[1]
    assert slot_key(wal.name, len(rig.store.objects) - 1) in rig.store.objects, "stored but not acknowledged"
    await wal.close()


async def test_verify_always_applies_to_a_proven_store(rig: ObjectWalRig) -> None:
    rig.settings = wal_settings(wal_verify="always")
    wal = await rig.opened()
    rig.cluster.fence(NODE)
    with pytest.raises(StorageFailedError, match=StreamFencedError.__name__):
        await append(wal, record(0))[1]
    await wal.close()


async def test_a_slot_has_records_of_many_streams_in_order(rig: ObjectWalRig) -> None:
    wal, store, told = await held(rig, 1)
    for number in range(1, 30):
        told.append(append(wal, record(number // 3, b"y", stream=9 - number % 3))[1])
    store.holds = False
    await store.let_go(slot_key(wal.name, 0))
    await asyncio.gather(*told)
    await wal.close()
    (left,) = rig.cluster.assign_wals(NODE, rig.cluster.register())
    slots = [[(each.stream_id, each.base_offset) for each in slot] for slot in await rig.walk(left)]
    assert all(slot == sorted(slot) for slot in slots)
    assert sum(map(len, slots)) == 30
    assert any(len({stream_id for stream_id, _ in slot}) > 1 for slot in slots)


async def test_a_full_slot_is_followed_by_the_next(rig: ObjectWalRig) -> None:
    rig.settings = wal_settings(wal_slot_bytes_max=64 * KIB, wal_puts_in_flight_max=2)
    wal = await rig.opened()
    told = [append(wal, record(number, bytes(20 * KIB)))[1] for number in range(12)]
    assert wal.room_bytes < 256 * KIB
    await asyncio.gather(*told)
    assert 4 <= wal.next_sequence <= 12
    assert max(map(len, rig.store.objects.values())) < 64 * KIB + 1_000
    await wal.close()
    assert [each.base_offset for each in await rig.left()] == list(range(12))


async def test_a_slot_of_small_records_is_limited_by_their_number(
    rig: ObjectWalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def count(buffers: list[Buffer]) -> Iterator[StreamRecord]:
        counts.append(len(buffers) // 2)
        return records_in(buffers)

    monkeypatch.setattr(object_wal, "records_in", count)
    wal = await rig.opened()
    told: list[BaseException | None] = []
    for entry in range(30):
        records = [record(entry * 1_000 + number) for number in range(1_000)]
        buffers = [each for one in records for each in (one.encode_header(), one.payload)]
        wal.append(buffers, told.append)
    await wal.close()
    assert told == [None] * 30
    assert sum(counts) == 30_000
    assert max(counts) <= SLOT_RECORDS_MAX


async def test_many_slots_or_bytes_request_an_upload(rig: ObjectWalRig) -> None:
    rig.settings = wal_settings(wal_recovery_slots_max=8)
    wal = await rig.opened()
    wanted = [wal.needs_upload]
    for number in range(8):
        await append(wal, record(number))[1]
        wanted.append(wal.needs_upload)
    assert wanted == [False] * 8 + [True]
    carried = [wal.may_carry]
    wal.trim(8, recorded_sequence=8)
    carried.append(wal.may_carry)
    assert carried == [False, True]
    await wal.close()


async def test_the_cost_metric_is_the_price_of_the_requests() -> None:
    telemetry = Telemetry()
    register_cost(telemetry, StorageSettings())

    def gauges(name: str) -> dict[Any, float]:
        return dict(telemetry.gauges(name))

    assert gauges("ponor_store_cost_usd_per_gigabyte") == {(): 0.0}
    Meter(MemoryObjectStore(), telemetry, ObjectWalRig().runtime.clock)
    telemetry.counter("ponor_object_store_requests_total", **{"op": "put", "class": "put"}).add(1_000_000)
    telemetry.counter("ponor_object_store_requests_total", **{"op": "list", "class": "put"}).add(200_000)
    telemetry.counter("ponor_object_store_requests_total", **{"op": "get", "class": "get"}).add(500_000)
    telemetry.counter("ponor_wal_object_bytes_total").add(2_000_000_000)
    costs = dict(telemetry.totals("ponor_store_cost_usd_total"))
    assert costs == {("put",): pytest.approx(6.0), ("get",): pytest.approx(0.2)}
    assert gauges("ponor_store_cost_usd_per_gigabyte") == {(): pytest.approx(3.1)}
