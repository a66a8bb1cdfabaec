"""Fetches with `read_committed`: the end of reads, aborted transactions, waits and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.partitions.marker_writer import MarkerWriter, PlacedMarker
from ponor_broker.partitions.partition_transactions import TransactionMarker
from ponor_broker.partitions.transactions import aborted_index
from ponor_kafka.control_records import ControlType, read_end_marker
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.fetch import PartitionData
from ponor_kafka.record_batch import BatchView, split_batches
from ponor_partition.segment import TXN

from services.broker.tests.fetch_rig import FetchRig
from services.broker.tests.memory_streams import MemoryStream
from services.broker.tests.partition_rig import batch
from services.broker.tests.partitions.transactions.test_transaction_model import Model
from services.broker.tests.partitions.transactions.transaction_kit import transactional

A = ("a", 0)
LONG_MS = 60_000


@dataclass
class Transactions:
    """Producers of one partition of a fetch rig."""

    rig: FetchRig
    sequences: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.markers = MarkerWriter(self.rig.partitions, self.rig.owned, self.rig.clock)

    def append(self, producer_id: int, count: int = 1) -> int:
        partition = self.rig.partition("a")
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + count
        view = transactional(producer_id, 0, sequence, count)
        proof = partition.transactions.begin_verification(producer_id, 0, generation=1)
        return partition.append(view, 5, lambda _: None, verification=proof)

    async def end(self, producer_id: int, *, commits: bool) -> None:
        marker = TransactionMarker(producer_id, 0, 0, commits)
        assert await self.markers.write([PlacedMarker(marker, "a", 0)]) == [ErrorCode.NONE]

    def freeze(self, *, data: bool = True) -> None:
        """Move data and index out of memory: only asynchronous reads find them."""
        partition = self.rig.partition("a")
        for name, stream in partition.log.streams.items():
            assert isinstance(stream, MemoryStream)
            stream.is_cold = data or name == TXN

    async def fetch(self, offset: int, **options: Any) -> PartitionData:
        response = await self.rig.fetch([(A, offset)], isolation_level=1, **options)
        return self.rig.answers(response)[A]


def listed(data: PartitionData) -> list[tuple[int, int]]:
    assert data.aborted_transactions is not None
    return [(one.producer_id, one.first_offset) for one in data.aborted_transactions]


def batches(data: PartitionData) -> list[BatchView]:
    return list(split_batches(memoryview(bytes(data.records or b""))))  # type: ignore[arg-type]


def consumed(data: PartitionData) -> list[int]:
    """The offsets that Java's consumer returns of an answer (`CompletedFetch`)."""
    aborted = sorted(listed(data), key=lambda one: one[1])
    skipped: set[int] = set()
    found: list[int] = []
    for view in batches(data):
        while aborted and aborted[0][1] <= view.last_offset:
            skipped.add(aborted.pop(0)[0])
        if view.is_control:
            marker = read_end_marker(view)
            if marker is not None and marker.kind is ControlType.ABORT:
                skipped.discard(view.producer_id)
        elif not view.is_transactional or view.producer_id not in skipped:
            found += range(view.base_offset, view.next_offset)
    return found


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_reads_end_at_the_last_stable_offset_and_list_aborted_transactions() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        some = Transactions(rig)
        some.append(1)
        await some.end(1, commits=False)
        await rig.append("a")
        some.append(2)
        await rig.append("a")
        data = await some.fetch(0)
        assert (data.last_stable_offset, data.high_watermark) == (3, 5)
        assert [one.base_offset for one in batches(data)] == [0, 1, 2]
        assert listed(data) == [(1, 0)]
        assert listed(await some.fetch(2)) == []
        assert listed(await some.fetch(0, partition_max_bytes=1)) == [(1, 0)]
        at_end = await some.fetch(3)
        assert (batches(at_end), listed(at_end), at_end.error_code) == ([], [], 0)
        plain = rig.answers(await rig.fetch([(A, 0)]))[A]
        assert (len(batches(plain)), plain.aborted_transactions, plain.last_stable_offset) == (5, None, 3)


@pytest.mark.parametrize("data_is_cold", [False, True])
async def test_aborted_transactions_are_read_from_objects(
    monkeypatch: pytest.MonkeyPatch, data_is_cold: bool
) -> None:
    monkeypatch.setattr(aborted_index, "ENTRIES_MAX", 1)
    async with FetchRig() as rig:
        await rig.create("a")
        some = Transactions(rig)
        for producer_id in range(5):
            some.append(producer_id)
            await some.end(producer_id, commits=False)
        some.freeze(data=data_is_cold)
        assert listed(await some.fetch(0)) == [(number, 2 * number) for number in range(5)]
        assert listed(await some.fetch(5)) == [(2, 4), (3, 6), (4, 8)]
        assert listed(await some.fetch(4, partition_max_bytes=1)) == [(2, 4)]


async def test_a_parked_fetch_waits_for_the_last_stable_offset() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        some = Transactions(rig)
        some.append(1)
        await turns()
        committed = rig.start([(A, 0)], isolation_level=1, max_wait_ms=LONG_MS)
        plain = rig.start([(A, 1)], max_wait_ms=LONG_MS)
        await turns()
        await rig.append("a")
        await turns()
        assert plain.done()
        assert not committed.done()
        await some.end(1, commits=True)
        assert consumed(rig.answers(await committed)[A]) == [0, 1]


async def test_a_parked_fetch_counts_the_bytes_of_plain_appends() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        size_bytes = len(batch().view)
        waiting = rig.start([(A, 0)], isolation_level=1, max_wait_ms=LONG_MS, min_bytes=3 * size_bytes)
        await turns()
        stream = rig.data_stream("a")
        stream.hold = True
        for _ in range(3):
            rig.partition("a").append(batch(), 5, lambda _: None)
        await turns()
        stream.confirm(2)
        await turns()
        assert not waiting.done()
        stream.confirm(1)
        assert len(batches(rig.answers(await waiting)[A])) == 3


async def test_a_session_reports_a_partition_when_its_transaction_ends() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        some = Transactions(rig)
        some.append(1)
        await turns()
        first = await rig.fetch([(A, 0)], isolation_level=1, epoch=0)
        again = {"session_id": first.session_id, "isolation_level": 1}
        assert rig.answers(await rig.fetch([], epoch=1, **again)) == {}
        await rig.append("a")
        await turns()
        assert rig.answers(await rig.fetch([], epoch=2, **again)) == {}
        waiting = rig.start([], epoch=3, max_wait_ms=LONG_MS, **again)  # type: ignore[arg-type]
        await turns()
        assert not waiting.done()
        await some.end(1, commits=True)
        assert consumed(rig.answers(await waiting)[A]) == [0, 1]
        some.append(1)
        await turns()
        moved = await rig.fetch([(A, 3)], epoch=4, **again)
        assert batches(rig.answers(moved)[A]) == []
        plain = await rig.fetch([], epoch=5, session_id=first.session_id, isolation_level=0)
        assert [one.base_offset for one in batches(rig.answers(plain)[A])] == [3]


producer = st.integers(0, 3)
step = st.one_of(
    st.tuples(st.just("append"), producer, st.integers(1, 3)),
    st.tuples(st.just("append"), producer, st.integers(1, 3)),
    st.tuples(st.just("plain"), producer, st.integers(1, 3)),
    st.tuples(st.just("end"), producer, st.booleans()),
    st.tuples(st.just("roll"), producer, st.none()),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(step, max_size=30), st.lists(st.sampled_from([1, 200, 500, 5_000]), min_size=1), st.booleans()
)
async def test_a_consumer_returns_the_committed_records_in_any_portions(
    steps: Sequence[tuple[str, int, Any]], sizes: list[int], is_cold: bool
) -> None:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(aborted_index, "ENTRIES_MAX", 2)
        async with FetchRig() as rig:
            await rig.create("a")
            some = Transactions(rig)
            for kind, producer_id, how in steps:
                partition = rig.partition("a")
                match kind:
                    case "append":
                        some.append(producer_id, how)
                    case "plain":
                        partition.append(batch(how), 5, lambda _: None)
                    case "end":
                        await some.end(producer_id, commits=how)
                    case "roll" if partition.log_end_offset > partition.log.log_meta.active.base_offset:
                        partition.log.roll(7)
            await turns()
            model = Model()
            for record in rig.data_stream("a").records:
                model.see(BatchView(memoryview(record.payload)))
            if is_cold:
                some.freeze()
            found: list[int] = []
            offset = number = 0
            while True:
                data = await some.fetch(offset, partition_max_bytes=sizes[number % len(sizes)])
                assert data.last_stable_offset == model.stable
                if not batches(data):
                    break
                end = batches(data)[-1].next_offset
                assert listed(data) == model.aborted_in(offset, end)
                found += consumed(data)
                offset, number = end, number + 1
            assert offset == model.stable
            assert found == sorted(one for one in model.committed if one < model.stable)


@pytest.mark.parametrize("in_session", [False, True])
async def test_a_wait_for_bytes_counts_only_those_below_the_last_stable_offset(*, in_session: bool) -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        some = Transactions(rig)
        some.append(1)
        await turns()
        (written,) = batches(rig.answers(await rig.fetch([(A, 0)]))[A])
        bytes_min = 4 * written.size_bytes
        options: dict[str, Any] = {"isolation_level": 1, "min_bytes": bytes_min, "max_wait_ms": LONG_MS}
        wanted = [(A, 0)]
        if in_session:
            first = await rig.fetch(wanted, isolation_level=1, epoch=0)
            wanted, options["session_id"], options["epoch"] = [], first.session_id, 1
        waiting = rig.start(wanted, **options)
        await turns()
        for producer_id in (2, 3):
            some.append(producer_id)
        await some.end(1, commits=True)
        await turns()
        assert not waiting.done(), "fewer bytes than requested are readable"
        await some.end(2, commits=True)
        await turns()
        assert not waiting.done()
        await some.end(3, commits=True)
        found = batches(rig.answers(await waiting)[A])
        assert [one.base_offset for one in found] == list(range(6))


async def test_a_wait_for_bytes_ends_at_its_deadline_after_a_marker() -> None:
    async with FetchRig() as rig:
        await rig.create("a")
        some = Transactions(rig)
        some.append(1)
        await turns()
        waiting = rig.start([(A, 0)], isolation_level=1, min_bytes=1 << 20, max_wait_ms=50)
        await turns()
        await some.end(1, commits=True)
        assert [one.base_offset for one in batches(rig.answers(await waiting)[A])] == [0, 1]
