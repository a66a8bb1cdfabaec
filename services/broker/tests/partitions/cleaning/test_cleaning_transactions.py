"""The cleaner over interleaved transactions: readers of committed records find the same values as before."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.handlers.fetch.committed_reads import from_objects
from ponor_broker.partitions.cleaning.cleaner import RETRY_MS
from ponor_broker.partitions.in_flight import settled_future
from ponor_broker.partitions.partition_transactions import TransactionMarker
from ponor_kafka.control_records import ControlType, control_type
from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_builder import build_batch

from services.broker.tests.partitions.cleaning.cleaning_kit import COMPACTED, CleaningRig

KEYS = [b"a", b"b"]
RETENTION_MS = 1_000

Latest = dict[bytes, tuple[int, bytes]]
"""Offset and value of each key's last record; deleted keys are missing."""


async def committed(one: CleaningRig) -> Latest:
    """Return what a consumer finds."""
    partition = one.partition
    assert partition is not None
    found: Latest = {}
    offset = partition.log_start_offset
    while offset < partition.last_stable_offset:
        read = await from_objects(partition, offset, 1 << 30)
        aborted = sorted(read.aborted or (), key=lambda transaction: transaction[1])
        skipped: set[int] = set()
        for record in read.records:
            batch = BatchView(memoryview(record.payload))
            offset = batch.next_offset
            while aborted and aborted[0][1] <= batch.last_offset:
                skipped.add(aborted.pop(0)[0])
            if batch.is_control:
                if control_type(batch) == ControlType.ABORT:
                    skipped.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in skipped):
                for row in batch.records(1 << 20):
                    assert row.key is not None
                    found.pop(row.key, None)
                    if row.value is not None:
                        found[row.key] = (row.offset, row.value)
    return found


async def unstable(one: CleaningRig) -> list[bytes]:
    """Return all batches from the last stable offset on."""
    partition = one.partition
    assert partition is not None
    found: list[bytes] = []
    offset = partition.last_stable_offset
    while offset < partition.high_watermark:
        for record in await partition.read(offset, 1 << 20):
            found.append(bytes(record.payload))
            offset = BatchView(memoryview(record.payload)).next_offset
    return found


def append(one: CleaningRig, producer_id: int, records: list[tuple[bytes, bytes | None]]) -> None:
    partition = one.partition
    assert partition is not None
    known = partition.producers.entry(producer_id)
    content = build_batch(
        [(6, *record) for record in records],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0 if known is None else known.last_sequence + 1,
        transactional=True,
    )
    partition.append_batch(content, partition.transactions.begin_verification(producer_id, 0, generation=1))


async def end(one: CleaningRig, producer_id: int, *, commits: bool) -> None:
    partition = one.partition
    assert partition is not None
    marker = TransactionMarker(producer_id, 0, 0, commits)
    if partition.transactions.needs_stream(marker):
        await one.rig.owned.add_txn_stream(partition)
    durable, settled = settled_future()
    partition.append_marker(marker, settled)
    await durable


async def live(one: CleaningRig, actions: list[tuple[str, int, Any]]) -> None:
    await one.open()
    for kind, producer_id, what in actions:
        match kind:
            case "append":
                append(one, producer_id, what)
                await asyncio.sleep(0)
            case "plain":
                await one.append([(5, *record) for record in what])
            case "end":
                await end(one, producer_id, commits=what)
            case "roll" if one.partition and one.partition.log_end_offset > one.log_meta.active.base_offset:
                one.roll()
            case "wait":
                one.rig.clock.now_ms += what
            case "clean":
                before = await committed(one), await unstable(one)
                await one.clean()
                assert (await committed(one), await unstable(one)) == before
            case "reopen":
                before = await committed(one), await unstable(one)
                await one.open()
                assert (await committed(one), await unstable(one)) == before


async def test_a_transaction_counts_only_when_its_marker_is_in_a_closed_segment() -> None:
    one = CleaningRig()
    await one.open()
    await one.append([(5, b"a", b"committed")])
    append(one, 1, [(b"a", b"aborted")])
    await asyncio.sleep(0)
    one.roll()
    await end(one, 1, commits=False)
    await one.clean()
    assert await committed(one) == {b"a": (0, b"committed")}
    one.roll()
    await one.append([(5, b"b", b"")])
    one.rig.clock.now_ms += RETRY_MS  # a pass without progress was the last one
    await one.clean()
    assert await committed(one) == {b"a": (0, b"committed"), b"b": (3, b"")}
    assert [found.offset for found in await one.read()] == [0, 2, 3]


producer = st.integers(0, 2)
records = st.lists(
    st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=2))), min_size=1, max_size=3
)
action = st.one_of(
    st.tuples(st.just("append"), producer, records),
    st.tuples(st.just("append"), producer, records),
    st.tuples(st.just("plain"), producer, records),
    st.tuples(st.just("end"), producer, st.booleans()),
    st.tuples(st.just("end"), producer, st.booleans()),
    st.tuples(st.just("roll"), producer, st.none()),
    st.tuples(st.just("clean"), producer, st.none()),
    st.tuples(st.just("wait"), producer, st.sampled_from([1, RETENTION_MS, RETRY_MS])),
    st.tuples(st.just("reopen"), producer, st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(action, max_size=40), st.sampled_from([200, 1 << 20]))
def test_a_cleaning_changes_nothing_for_readers_of_committed_records(
    actions: list[tuple[str, int, Any]], segment_bytes: int
) -> None:
    config = replace(COMPACTED, delete_retention_ms=RETENTION_MS, segment_bytes=segment_bytes)
    asyncio.run(live(CleaningRig(config), actions))
