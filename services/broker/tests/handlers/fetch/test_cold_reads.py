"""Bounds of reads of old data: rotating slots, waiting reads, rate and duration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.handlers.fetch.cold_reads import ColdReads, FairSlots
from ponor_broker.handlers.fetch.committed_reads import ReadRecords
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.partition import Partition
from ponor_broker.settings import BrokerSettings
from ponor_kafka.errors import ErrorCode
from ponor_runtime.telemetry import Telemetry
from s3stream.records import StreamRecord

from services.broker.tests.memory_streams import MemoryStream
from services.broker.tests.partition_rig import PartitionRig, SteppedClock, batch


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@dataclass
class Owner:
    """An owner that requests slots; all owners share `served`."""

    name: str
    served: list[str] = field(default_factory=list)

    __hash__ = object.__hash__

    async def work(self, slots: FairSlots, gate: asyncio.Semaphore) -> None:
        async with slots.slot(self):
            self.served.append(self.name)
            await gate.acquire()


class TestSlots:
    async def test_slots_rotate_over_owners(self) -> None:
        slots, gate, served = FairSlots(1), asyncio.Semaphore(0), list[str]()
        many, one, two = Owner("many", served), Owner("one", served), Owner("two", served)
        tasks = [asyncio.create_task(many.work(slots, gate)) for _ in range(5)]
        await turns()
        tasks += [asyncio.create_task(owner.work(slots, gate)) for owner in (one, two, two)]
        await turns()
        assert slots.waiting == 7
        for _ in range(8):
            gate.release()
            await turns()
        await asyncio.gather(*tasks)
        assert served == ["many", "many", "one", "two", "many", "two", "many", "many"]

    @given(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "leave", "cancel"])), max_size=60
        )
    )
    async def test_no_slot_is_lost_or_granted_twice(self, steps: list[tuple[str, str]]) -> None:
        slots, gate = FairSlots(2), asyncio.Semaphore(0)
        inside: list[asyncio.Task[None]] = []
        tasks: list[asyncio.Task[None]] = []
        holding = 0

        async def hold(owner: str) -> None:
            nonlocal holding
            async with slots.slot(owner):
                holding += 1
                try:
                    await gate.acquire()
                finally:
                    holding -= 1

        for owner, step in steps:
            if step == "enter":
                tasks.append(asyncio.create_task(hold(owner)))
            elif step == "cancel" and tasks:
                tasks.pop(len(tasks) // 2).cancel()  # at once, without a turn: grants and cancellations meet
            elif holding:
                gate.release()
            if len(inside) % 3 == 0:
                await asyncio.sleep(0)
            assert holding <= 2
        await turns()
        waiting_or_inside = [task for task in tasks if not task.done()]
        assert holding == min(2, len(waiting_or_inside))
        for _ in waiting_or_inside:
            gate.release()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert slots.waiting == 0
        async with slots.slot("x"), slots.slot("y"):
            pass


class SlowStream:
    """Delays reads of a stream's objects until the test releases them."""

    def __init__(self, stream: MemoryStream) -> None:
        self.gate = asyncio.Event()
        self.reads = 0
        self._fetch = stream.fetch
        stream.is_cold = True
        stream.fetch = self.fetch  # type: ignore[method-assign]

    async def fetch(self, start_offset: int, max_bytes: int) -> list[StreamRecord]:
        self.reads += 1
        await self.gate.wait()
        return await self._fetch(start_offset, max_bytes)


@contextmanager
def reads(**limits: Any) -> Iterator[tuple[ColdReads, Telemetry]]:
    telemetry = Telemetry()
    settings = BrokerSettings(
        cold_reads_in_flight_max=1, cold_reads_waiting_max=10, cold_read_bytes_per_s_max=0
    )
    yield ColdReads(replace(settings, **limits), clock=SteppedClock(), telemetry=telemetry), telemetry


async def cold_partition(batches: int = 3) -> tuple[Partition, SlowStream]:
    rig = PartitionRig()
    partition = await rig.open()
    for _ in range(batches):
        partition.append(batch(), 0, lambda _: None)
    await turns()
    return partition, SlowStream(rig.stream("log"))


async def test_waiting_reads_are_bounded() -> None:
    partition, slow = await cold_partition()
    with reads(cold_reads_waiting_max=2) as (cold, telemetry):
        waiting = [asyncio.create_task(cold.read(n, partition, 0, 1000, ms_max=None)) for n in range(3)]
        await turns()
        states = {labels[0]: value for labels, value in telemetry.gauges("ponor_cold_reads")}
        assert states == {"reading": 1, "waiting": 2}
        refused = await cold.read(3, partition, 0, 1000, ms_max=None)
        assert isinstance(refused, PartitionError)
        assert refused.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert dict(telemetry.counters("ponor_cold_reads_refused_total"))[()] == 1
        slow.gate.set()
        answers = await asyncio.gather(*waiting)
        assert [len(one.records) for one in answers if isinstance(one, ReadRecords)] == [3, 3, 3]


async def test_the_size_of_a_read_is_bounded() -> None:
    partition, slow = await cold_partition()
    slow.gate.set()
    with reads(cold_read_bytes_max=1) as (cold, _):
        read = await cold.read(0, partition, 0, 1 << 30, ms_max=None)
        assert isinstance(read, ReadRecords)
        assert len(read.records) == 1


async def test_a_slow_read_returns_an_error_or_no_records() -> None:
    partition, slow = await cold_partition()
    with reads(cold_read_ms_max=1) as (cold, _):
        alone = await cold.read(0, partition, 0, 1000, ms_max=None)
        assert isinstance(alone, PartitionError)
        assert alone.code.retriable
        nothing = await cold.read(0, partition, 0, 1000, ms_max=1)
        assert nothing == ReadRecords(()), "there was something else to answer"
        slow.gate.set()
        read = await cold.read(0, partition, 0, 1000, ms_max=1000)
        assert isinstance(read, ReadRecords)
        assert len(read.records) == 3


async def test_reads_that_are_given_up_while_they_wait_for_the_rate_leave_no_debt() -> None:
    """Readers that time out and return would otherwise delay every read more, until none succeeds."""

    class Waiting(SteppedClock):
        waits_s: tuple[float, ...] = ()

        async def sleep(self, seconds: float) -> None:
            self.waits_s += (seconds,)
            await asyncio.Event().wait()

    partition, slow = await cold_partition()
    clock = Waiting()
    settings = BrokerSettings(cold_reads_in_flight_max=2, cold_read_bytes_per_s_max=1_000)
    cold = ColdReads(settings, clock=clock, telemetry=Telemetry())
    reading = asyncio.create_task(cold.read(0, partition, 0, 1_000, ms_max=None))
    await turns()
    for _ in range(3):
        waiting = asyncio.create_task(cold.read(1, partition, 0, 1_000, ms_max=None))
        await turns()
        waiting.cancel()
        await turns()
    slow.gate.set()
    await reading
    assert clock.waits_s == (0.75,) * 3
