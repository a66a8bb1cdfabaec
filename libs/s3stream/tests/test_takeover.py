"""Recovery of a failed broker's object WAL by another broker: no acknowledged record is lost or
duplicated, and no superseded record reappears.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import NodeId
from ponor_runtime.object_store import ObjectInfo, ObjectStoreUnavailableError
from s3stream.errors import AppendBackpressureError, StorageFailedError, WalCorruptError, WalNotHeldError
from s3stream.object_wal.slot import LABEL_BYTES
from s3stream.object_wal.slot_keys import slot_key, wal_prefix
from s3stream.object_wal.walk import WalWalk
from s3stream.records import StreamRecord
from s3stream.recovery import RECORDS_PER_TURN, RecoveryFilter, RecoveryReport, Verdict
from s3stream.settings import KIB
from s3stream.stream import Stream

from libs.s3stream.tests.diskless_cluster import Broker, DisklessCluster, SlowWayStore
from libs.s3stream.tests.store_rig import MemoryObjectStore

OLD, NEW, THIRD = NodeId(1), NodeId(2), NodeId(3)


@pytest.fixture
async def cluster() -> AsyncIterator[DisklessCluster]:
    cluster = DisklessCluster()
    yield cluster
    for broker in cluster.brokers:
        await broker.stop()


async def two_brokers(cluster: DisklessCluster, **settings: Any) -> tuple[Broker, Broker, list[Stream]]:
    old, new = await cluster.broker(OLD, **settings), await cluster.broker(NEW)
    streams = await old.open(*await old.client.create_streams([{}, {}]))
    return old, new, streams


async def write(broker: Broker, streams: Sequence[Stream], name: str, count: int, size: int = 20) -> None:
    """Append acknowledged records in several slots."""
    for number in range(count):
        futures = [broker.append(stream, f"{name}{number}".encode().ljust(size, b".")) for stream in streams]
        await asyncio.gather(*futures)


async def test_the_streams_of_a_dead_broker_continue_elsewhere(cluster: DisklessCluster) -> None:
    old, new, streams = await two_brokers(cluster)
    await write(old, streams, "a", 10)
    (wal,) = cluster.fail_over(OLD, new)
    await old.stop()
    report = await cluster.recover(wal, new)
    assert (report.records, report.streams, report.skipped_committed) == (20, 2, 0)
    assert cluster.model.closed_wals[wal.name] == report.slots == 10
    assert cluster.slots(wal_prefix(wal.name)) == []
    assert len(cluster.store.objects[slot_key(wal.name, 10)]) == LABEL_BYTES, "the fence stays"
    again = await new.open(*[stream.stream_id for stream in streams])
    await write(new, again, "b", 3)
    assert await new.client.close()
    await cluster.check()


async def test_slots_stay_while_a_forced_recovery_waits_for_confirmation(cluster: DisklessCluster) -> None:
    old, new, streams = await two_brokers(cluster)
    await write(old, streams, "a", 3)
    (wal,) = cluster.fail_over(OLD, new)
    await old.stop()
    cluster.model.incarnation_unconfirmed = True
    assert (await cluster.recover(wal, new)).slots == 3
    assert [slot_key(wal.name, n) in cluster.store.objects for n in range(3)] == [True] * 3
    await cluster.check()


async def test_a_takeover_classifies_a_bounded_number_of_records_per_turn(
    cluster: DisklessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, streams = await two_brokers(cluster)
    for _ in range(3):
        await asyncio.gather(*(old.append(streams[0], b"x") for _ in range(2_000)))
    (wal,) = cluster.fail_over(OLD, new)
    await old.stop()
    turns = [0]
    judge = RecoveryFilter.judge

    def count(judging: RecoveryFilter, record: StreamRecord) -> Verdict:
        turns[-1] += 1
        return judge(judging, record)

    async def begin_turns() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(RecoveryFilter, "judge", count)
    watching = asyncio.create_task(begin_turns())
    report = await cluster.recover(wal, new)
    watching.cancel()
    assert report.records == sum(turns) == 6_000
    assert max(turns) <= RECORDS_PER_TURN


async def test_uploaded_data_is_not_uploaded_again(cluster: DisklessCluster) -> None:
    old, new, streams = await two_brokers(cluster)
    await write(old, streams, "a", 5)
    await old.client.force_upload()
    await write(old, streams, "b", 5)
    (wal,) = cluster.fail_over(OLD, new)
    assert wal.trim_sequence == 5, "sent with the commit"
    report = await cluster.recover(wal, new)
    assert (report.records, report.slots) == (10, 5)
    await cluster.check()


async def test_slots_are_deleted_after_the_commit_with_their_trim_point(cluster: DisklessCluster) -> None:
    old, _, streams = await two_brokers(cluster)
    await write(old, streams, "a", 8)
    prefix = wal_prefix(old.wal.name)
    assert len(cluster.slots(prefix)) == 8
    seen: list[int] = []
    cluster.model.on_step = lambda step: seen.append(len(cluster.slots(prefix))) if "commit" in step else None
    await old.client.force_upload()
    assert seen == [8, 8], "before and right after the commit"
    while cluster.slots(prefix):
        await asyncio.sleep(0)
    assert old.wal.retained_bytes == 0


async def test_an_idle_broker_sends_no_request(cluster: DisklessCluster) -> None:
    old, _, streams = await two_brokers(cluster)
    await write(old, streams, "a", 3)
    await old.client.force_upload()
    while cluster.slots(wal_prefix(old.wal.name)):
        await asyncio.sleep(0)
    before = len(cluster.store.calls)
    await asyncio.sleep(0.2)
    assert len(cluster.store.calls) == before


async def test_a_clean_stop_leaves_neither_slots_nor_an_open_log(cluster: DisklessCluster) -> None:
    old, _, streams = await two_brokers(cluster)
    await write(old, streams, "a", 6)
    assert await old.client.close()
    assert cluster.model.closed_wals[old.wal.name] == 6
    assert [key for key in cluster.store.objects if "/wal/" in key] == []
    await cluster.check()


async def test_a_zombie_with_puts_in_flight(cluster: DisklessCluster) -> None:
    """It is paused with puts in flight and recovered. Its successor writes, and everything is
    trimmed and deleted. Then it resumes.
    """
    old, new, streams = await two_brokers(cluster, wal_hedge_ms=600_000)
    await write(old, streams, "a", 3)
    prefix = wal_prefix(old.wal.name)
    cluster.store.holds = lambda key: key.startswith(prefix)
    pending = []
    for number in range(4):
        pending += [old.append(stream, f"z{number}".encode()) for stream in streams]
        while len(cluster.store.held) <= number:
            await asyncio.sleep(0.001)
    (wal,) = cluster.fail_over(OLD, new)
    held, cluster.store.held = cluster.store.held, []
    cluster.store.holds = lambda _: False
    await cluster.recover(wal, new)
    again = await new.open(*[stream.stream_id for stream in streams])
    await write(new, again, "b", 5)
    await new.client.force_upload()
    cluster.store.held = held
    cluster.store.let_go()
    told = await asyncio.gather(*pending, return_exceptions=True)
    assert all(isinstance(error, StorageFailedError) for error in told), told
    with pytest.raises(StorageFailedError, match="fence"):
        old.append(streams[0], b"more")
    late = cluster.slots(prefix)
    assert late == [slot_key(wal.name, number) for number in (4, 5, 6)], "above the fence, for the collector"
    # The next failover of the next owner is not affected.
    third = await cluster.broker(THIRD)
    await write(new, again, "c", 2)
    for each in cluster.fail_over(NEW, third):
        await cluster.recover(each, third)
    await cluster.check()
    assert b"z0" not in await cluster.committed(streams[0].stream_id)


async def test_a_stored_put_without_an_answer_is_recovered_and_may_be_acknowledged_late(
    cluster: DisklessCluster,
) -> None:
    old, new, streams = await two_brokers(cluster, wal_hedge_ms=600_000)
    await write(old, streams, "a", 2)
    answer = asyncio.Event()
    put = MemoryObjectStore.put

    async def landed(key: str, buffers: Sequence[Buffer]) -> None:
        await put(cluster.store, key, buffers)
        await answer.wait()

    cluster.store.put = landed  # type: ignore[method-assign]
    pending = old.append(streams[0], b"landed")
    while slot_key(old.wal.name, 2) not in cluster.store.objects:
        await asyncio.sleep(0.001)
    cluster.store.put = SlowWayStore.put.__get__(cluster.store)  # type: ignore[method-assign]
    (wal,) = cluster.fail_over(OLD, new)
    await cluster.recover(wal, new)
    answer.set()
    await pending
    await cluster.check()


async def test_an_owner_that_continues_to_write_is_fenced(cluster: DisklessCluster) -> None:
    old, new, streams = await two_brokers(cluster, upload_interval_ms=3_600_000)
    stopped = asyncio.Event()

    async def hammer() -> None:
        number = 0
        with pytest.raises((StorageFailedError, AppendBackpressureError)):
            while True:
                number += 1
                await old.append(streams[0], f"h{number}".encode())
        stopped.set()

    hammering = asyncio.create_task(hammer())
    while old.wal.next_sequence < 20:
        await asyncio.sleep(0.001)
    (wal,) = cluster.fail_over(OLD, new)
    report = await cluster.recover(wal, new)
    await hammering
    assert stopped.is_set()
    assert report.records >= 20
    await cluster.check()


async def test_a_slot_lost_by_the_store_stops_the_recovery_and_is_named(cluster: DisklessCluster) -> None:
    old, new, streams = await two_brokers(cluster)
    await write(old, streams, "a", 6)
    lost = slot_key(old.wal.name, 3)
    data = cluster.store.objects.pop(lost)
    (wal,) = cluster.fail_over(OLD, new)
    for _ in range(2):
        with pytest.raises(WalCorruptError, match=lost):
            await cluster.recover(wal, new)
        assert wal.name in cluster.model.wals
        assert all(row.open for row in cluster.model.streams.values())
        assert lost not in cluster.store.objects, "no fence in its place"
    cluster.store.objects[lost] = data  # the operator restores it
    report = await cluster.recover(wal, new)
    assert report.records == 12
    await cluster.check()


async def test_a_damaged_slot_stops_the_recovery_and_is_named(cluster: DisklessCluster) -> None:
    old, new, streams = await two_brokers(cluster)
    await write(old, streams, "a", 4)
    key = slot_key(old.wal.name, 2)
    intact = cluster.store.objects[key]
    (wal,) = cluster.fail_over(OLD, new)
    for at in (0, 50, len(intact) - LABEL_BYTES - 10, len(intact) - 60):
        damaged = bytearray(intact)
        damaged[at] ^= 1
        cluster.store.objects[key] = bytes(damaged)
        with pytest.raises(WalCorruptError, match=key):
            await cluster.recover(wal, new)
    cluster.store.objects[key] = intact
    assert (await cluster.recover(wal, new)).records == 8
    await cluster.check()


async def test_two_concurrent_recoverers(cluster: DisklessCluster) -> None:
    """The controller reassigns the log to another process while the first one recovers it."""
    old, new, streams = await two_brokers(cluster)
    third = await cluster.broker(THIRD)
    await write(old, streams, "a", 30, size=2 * KIB)
    (wal,) = cluster.fail_over(OLD, new)
    first = asyncio.create_task(cluster.recover(wal, new, recovery_chunk_bytes_max=1 << 20))
    for _ in range(3):
        await asyncio.sleep(0)
    (again,) = cluster.model.assign_wals(OLD, third.node)
    second = asyncio.create_task(cluster.recover(again, third))
    with pytest.raises(WalNotHeldError):
        await first
    await second
    await cluster.check()


async def test_the_same_recoverer_twice_concurrently(cluster: DisklessCluster) -> None:
    old, new, streams = await two_brokers(cluster)
    await write(old, streams, "a", 30, size=2 * KIB)
    (wal,) = cluster.fail_over(OLD, new)
    done = await asyncio.gather(*[cluster.recover(wal, new) for _ in range(3)], return_exceptions=True)
    assert any(isinstance(each, RecoveryReport) for each in done)
    assert all(isinstance(each, RecoveryReport | WalNotHeldError) for each in done), done
    assert wal.name in cluster.model.closed_wals
    await cluster.check()


STEPS = [
    "prepare:after",
    "commit:before",
    "commit:after",
    "close:before",
    "close:after",
    "close_wal:before",
    "close_wal:after",
]


class Crashed(BaseException):
    pass


@pytest.mark.parametrize("step", STEPS)
async def test_a_recovery_that_crashes_anywhere_is_repeated_by_another_process(
    cluster: DisklessCluster, step: str
) -> None:
    old, new, streams = await two_brokers(cluster)
    third = await cluster.broker(THIRD)
    await write(old, streams, "a", 12, size=40 * KIB)
    (wal,) = cluster.fail_over(OLD, new)

    def crash(name: str) -> None:
        if name == step:
            raise Crashed

    cluster.model.on_step = crash
    with pytest.raises((Crashed, BaseExceptionGroup)):
        await cluster.recover(wal, new, recovery_chunk_bytes_max=1 << 20)
    cluster.model.on_step = lambda _: None
    for again in cluster.model.assign_wals(OLD, third.node):
        await cluster.recover(again, third, recovery_chunk_bytes_max=1 << 20)
    assert wal.name in cluster.model.closed_wals
    assert not any(row.open for row in cluster.model.streams.values())
    await cluster.check()


async def test_a_closed_stream_is_not_changed_by_its_remaining_records(
    cluster: DisklessCluster,
) -> None:
    """The answer was lost, the stream moved on, and its old owner crashed: the slot contains a
    record at an offset that now belongs to another owner.
    """
    old, new, streams = await two_brokers(cluster)
    moved, stays = streams
    await write(old, streams, "a", 2)
    await moved.close()
    (at_new,) = await new.open(moved.stream_id)
    await write(new, [at_new], "b", 2)
    await write(old, [stays], "c", 1)
    (wal,) = cluster.fail_over(OLD, new)
    report = await cluster.recover(wal, new)
    assert (report.streams, report.records) == (1, 1)
    assert await new.client.close()
    await cluster.check()


async def test_a_restarted_node_recovers_its_own_log(cluster: DisklessCluster) -> None:
    old = await cluster.broker(OLD)
    streams = await old.open(*await old.client.create_streams([{}]))
    await write(old, streams, "a", 4)
    await old.stop()
    back = await cluster.broker(OLD)
    (wal,) = cluster.model.assign_wals(OLD, back.node)
    assert (await cluster.recover(wal, back)).records == 4
    again = await back.open(streams[0].stream_id)
    await write(back, again, "b", 2)
    assert await back.client.close()
    await cluster.check()


async def test_an_empty_log_is_recovered(cluster: DisklessCluster) -> None:
    old, new = await cluster.broker(OLD), await cluster.broker(NEW)
    del old
    (wal,) = cluster.fail_over(OLD, new)
    calls = len(cluster.store.calls)
    assert (await cluster.recover(wal, new)).slots == 0
    assert [call[0] for call in cluster.store.calls[calls:]] == ["list", "put"]


async def test_a_store_outage_ends_the_recovery_without_changes(cluster: DisklessCluster) -> None:
    old, new, streams = await two_brokers(cluster)
    await write(old, streams, "a", 4)
    (wal,) = cluster.fail_over(OLD, new)

    async def down(key: str, length: int) -> tuple[bytes, int]:
        raise ObjectStoreUnavailableError(f"503 for {key}, {length}")

    cluster.store.get_tail = down  # type: ignore[method-assign]
    with pytest.raises(ObjectStoreUnavailableError):
        await cluster.recover(wal, new)
    cluster.store.get_tail = MemoryObjectStore.get_tail.__get__(cluster.store)  # type: ignore[method-assign]
    assert (await cluster.recover(wal, new)).records == 8
    await cluster.check()


async def test_all_recoverers_find_the_same_end(cluster: DisklessCluster) -> None:
    old, new, streams = await two_brokers(cluster)
    await write(old, streams, "a", 5)
    (wal,) = cluster.fail_over(OLD, new)

    async def walked() -> int:
        walk = WalWalk(
            store=cluster.retried(),
            wal=wal,
            randomness=cluster.runtime.randomness,
            telemetry=cluster.runtime.telemetry,
            hedge_ms=1_000,
            reads_in_flight_max=2,
            bytes_in_flight_max=KIB,
        )
        async for _ in walk.slots():
            pass
        return walk.end_sequence

    assert await asyncio.gather(*[walked() for _ in range(5)]) == [5] * 5


@pytest.mark.parametrize("lands", [True, False])
async def test_a_slot_that_arrives_between_two_pages_of_the_listing_is_not_reported_lost(
    cluster: DisklessCluster, *, lands: bool
) -> None:
    """Page 1 of the listing shows a hole. Before page 2, the slot arrives, and the owner writes
    slots that list it as acknowledged. If the slot were missing, an object would be lost.
    """
    old, new = await cluster.broker(OLD, wal_hedge_ms=600_000), await cluster.broker(NEW)
    (stream,) = await old.open(*await old.client.create_streams([{}]))
    await write(old, [stream], "a", 3)
    hole = slot_key(old.wal.name, 3)
    cluster.store.holds = lambda key: key == hole
    flying = []
    for number in range(3, 6):  # slot 3 is in flight; 4 and 5 arrive
        flying.append(old.append(stream, b"y%d" % number))
        while len(cluster.store.held) + len(cluster.slots(wal_prefix(old.wal.name))) <= number:
            await asyncio.sleep(0.001)
    (wal,) = cluster.fail_over(OLD, new)
    listed = cluster.store.list

    def in_pages(prefix: str) -> AsyncIterator[ObjectInfo]:
        async def pages() -> AsyncIterator[ObjectInfo]:
            first = [info async for info in listed(prefix)]
            for info in first:
                yield info
            cluster.store.let_go()
            await asyncio.gather(*flying)
            await write(old, [stream], "b", 2)
            if not lands:
                del cluster.store.objects[hole]
            async for info in listed(prefix):
                if info.key > first[-1].key:
                    yield info

        return pages()

    cluster.store.list = in_pages  # type: ignore[method-assign]
    if lands:
        assert (await cluster.recover(wal, new)).records == 8
        await cluster.check()
    else:
        with pytest.raises(WalCorruptError, match="was acknowledged"):
            await cluster.recover(wal, new)
