"""Appended data in one process: acknowledgement, reads, uploads, limits. Real log, real store, real disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import StreamEpoch
from ponor_runtime.object_store import ObjectStoreUnavailableError
from s3stream.errors import (
    AppendBackpressureError,
    OffsetOutOfRangeError,
    StorageFailedError,
    StreamClosedError,
)
from s3stream.settings import KIB, StorageSettings

from libs.s3stream.tests.storage_node import StorageNode, append_all, payloads_of, read_all, small_settings


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[StorageNode]:
    node = await started(tmp_path, small_settings())
    yield node
    await node.close()
    assert node.failures == []


async def started(path: Path, settings: StorageSettings) -> StorageNode:
    node = await StorageNode.create(path, settings)
    await node.start()
    return node


async def test_append_is_readable_when_it_is_acknowledged(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    assert (stream.next_offset, stream.confirmed_offset) == (0, 0)
    payload = memoryview(bytearray(b"hello"))
    first = stream.append(payload, count=3, max_timestamp=7)
    second = stream.append(b"world", count=1, max_timestamp=8)
    assert (stream.next_offset, stream.confirmed_offset) == (4, 0)
    order: list[int] = []
    first.add_done_callback(lambda _: order.append(1))
    second.add_done_callback(lambda _: order.append(2))
    await second
    assert order[0] == 1
    assert stream.confirmed_offset == 4
    records = stream.fetch_cached(1, 1000)
    assert records is not None
    assert [(r.base_offset, r.count, r.max_timestamp) for r in records] == [(0, 3, 7), (3, 1, 8)]
    assert records[0].payload is payload, "never copied"
    assert stream.fetch_cached(3, 0) == records[1:], "at least one record regardless of its size"
    assert stream.fetch_cached(4, 1000) == []
    with pytest.raises(OffsetOutOfRangeError):
        stream.fetch_cached(5, 1000)


async def test_a_cancelled_wait_does_not_undo_the_append(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    stream.append(b"a", count=1, max_timestamp=-1).cancel()
    await stream.append(b"b", count=1, max_timestamp=-1)
    assert payloads_of(await read_all(stream)) == [b"a", b"b"]


async def test_invalid_appends_are_refused_and_change_nothing(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    with pytest.raises(ValueError, match="0 offsets"):
        stream.append(b"", count=0, max_timestamp=-1)
    with pytest.raises(ValueError, match="log_cache_bytes_max"):
        stream.append(bytes(node.settings.append_bytes_max), count=1, max_timestamp=-1)
    assert stream.next_offset == 0
    await stream.close()
    with pytest.raises(StreamClosedError):
        stream.append(b"x", count=1, max_timestamp=-1)


async def test_uploads_overlap_and_commit_in_order(node: StorageNode) -> None:
    streams = await node.open_new(2)
    node.store.open_gate.clear()
    payloads = [bytes([number]) * 8 * KIB for number in range(200)]
    for start in range(0, 200, 25):
        for stream in streams:
            await append_all(stream, payloads[start : start + 25])
    while node.store.puts < node.settings.uploads_in_flight_max:
        await asyncio.sleep(0.001)
    assert node.cluster.commits == [], "nothing is visible before it is in the store"
    node.store.open_gate.set()
    await node.client.force_upload()
    # The model refuses a commit that does not continue its stream, so their order was correct.
    assert len(node.cluster.commits) > 3
    for stream in streams:
        assert stream.committed_offset == 200
        assert payloads_of(await read_all(stream)) == payloads


async def test_read_across_objects_and_cache(tmp_path: Path) -> None:
    node = await started(tmp_path, small_settings(append_waiting_bytes_max=1024 * KIB))
    streams = await node.open_new(3)
    payloads = [number.to_bytes(2, "big") * 4 * KIB for number in range(700)]
    for start in range(0, 700, 50):
        for stream in streams:
            await append_all(stream, payloads[start : start + 50])
    stream = streams[0]
    assert stream.fetch_cached(0, 1) is None, "16 MiB do not fit into 8"
    assert stream.fetch_cached(699, 1) is not None
    for each in streams:
        assert payloads_of(await read_all(each)) == payloads
    boundary = next(offset for offset in range(700) if stream.fetch_cached(offset, 1) is not None)
    across = await stream.fetch(boundary - 1, 40 * KIB)
    assert [record.base_offset for record in across] == list(range(boundary - 1, boundary + 4))
    assert node.store.gets > 0
    await node.close()


async def test_backpressure_starts_and_ends_with_a_store_outage(node: StorageNode) -> None:
    streams = await node.open_new(4)
    node.store.down = True
    acknowledged: list[list[bytes]] = [[] for _ in streams]
    pending: list[asyncio.Future[None]] = []
    refused = 0
    number = 0
    while refused < 50:
        index = number % len(streams)
        payload = number.to_bytes(4, "big") * 2 * KIB
        try:
            pending.append(streams[index].append(payload, count=1, max_timestamp=-1))
            acknowledged[index].append(payload)
        except AppendBackpressureError:
            refused += 1
        number += 1
        await asyncio.sleep(0)
    assert sum(map(len, acknowledged)) * 8 * KIB > node.settings.log_cache_bytes_max // 2
    assert any(not future.done() for future in pending), "the last ones wait for room"
    node.store.down = False
    await asyncio.gather(*pending)
    await streams[0].append(b"after", count=1, max_timestamp=-1)
    for stream, expected in zip(streams, acknowledged, strict=True):
        assert payloads_of(await read_all(stream))[: len(expected)] == expected


async def test_the_memory_budget_is_never_exceeded(node: StorageNode) -> None:
    streams = await node.open_new(8)
    held_max = 0
    pending: list[asyncio.Future[None]] = []
    for number in range(6_000):
        try:
            pending.append(streams[number % 8].append(bytes(4 * KIB), count=1, max_timestamp=-1))
        except AppendBackpressureError:
            await asyncio.sleep(0.001)
        if number % 7 == 0:
            await asyncio.sleep(0)
        (held,) = [value for _, value in node.telemetry.gauges("ponor_log_cache_bytes")]
        held_max = max(held_max, int(held))
    await asyncio.gather(*pending)
    assert 0 < held_max <= node.settings.log_cache_bytes_max


async def test_an_idle_node_sends_no_request(tmp_path: Path) -> None:
    node = await started(tmp_path, small_settings(upload_interval_ms=20))
    data, meta = await node.open_new(2)
    node.client.on_upload(data.stream_id, lambda: append_quietly(meta))
    await append_all(data, [b"x" * KIB])
    while data.committed_offset < 1 or meta.committed_offset < 1:
        await asyncio.sleep(0.005)
    calls, commits = node.store.calls, len(node.cluster.commits)
    await asyncio.sleep(0.2)
    assert (node.store.calls, len(node.cluster.commits)) == (calls, commits) == (1, 1)
    await node.close()


def append_quietly(stream: object) -> bool:
    stream.append(b"snapshot", count=1, max_timestamp=-1)  # type: ignore[attr-defined]
    return False


async def test_a_hook_cannot_append_a_record_too_large_for_the_log(node: StorageNode) -> None:
    data, meta = await node.open_new(2)
    refused: list[str] = []

    def append_too_much() -> bool:
        with pytest.raises(ValueError, match="exceeds the") as raised:
            meta.append(bytes(meta.payload_bytes_max + 1), count=1, max_timestamp=-1)
        refused.append(str(raised.value))
        meta.append(bytes(meta.payload_bytes_max), count=1, max_timestamp=-1)
        return False

    node.client.on_upload(data.stream_id, append_too_much)
    await append_all(data, [b"x"])
    await node.client.force_upload()
    assert refused
    assert meta.committed_offset == 1
    await node.close()


async def test_the_records_of_a_hook_are_in_the_same_block(node: StorageNode) -> None:
    data, other, meta = await node.open_new(3)
    covered: list[int] = []

    def snapshot() -> bool:
        covered.append(data.next_offset)
        meta.append(data.next_offset.to_bytes(8, "big"), count=1, max_timestamp=-1)
        return False

    node.client.on_upload(data.stream_id, snapshot)
    await append_all(other, [bytes(400 * KIB), bytes(200 * KIB)])
    await node.client.force_upload()
    assert covered == [], "no data of its own, no hook"
    for _ in range(6):
        # Durable before the next ones arrive; otherwise a slow log would put all of them into one block.
        await append_all(data, [bytes(4 * KIB)] * 150)
    await node.client.force_upload()
    await asyncio.sleep(0.05)
    await node.client.force_upload()
    assert len(covered) >= 2
    snapshot_ends = {
        part.start_offset: index
        for index, commit in enumerate(node.cluster.commits)
        for uploaded in [commit.stream_set_object, *commit.stream_objects]
        if uploaded is not None
        for part in uploaded.ranges
        if part.stream_id == meta.stream_id
    }
    assert snapshot_ends, "snapshots were committed"
    assert covered[-1] == data.next_offset
    snapshots = payloads_of(await read_all(meta))
    assert [int.from_bytes(payload, "big") for payload in snapshots] == covered
    # Each block ends with its data exactly where its snapshot ends.
    ends = {
        part.end_offset
        for commit in node.cluster.commits
        for uploaded in [commit.stream_set_object, *commit.stream_objects]
        if uploaded is not None
        for part in uploaded.ranges
        if part.stream_id == data.stream_id
    }
    assert ends == set(covered)


async def test_closing_many_streams_makes_one_object(node: StorageNode) -> None:
    streams = await node.open_new(1000)
    await asyncio.gather(*[stream.append(b"small", count=1, max_timestamp=-1) for stream in streams])
    await asyncio.gather(*[stream.close() for stream in streams])
    assert node.store.puts == 1
    assert not any(row.open for row in node.cluster.streams.values())


async def test_a_seal_after_the_stop_uploads_nothing(tmp_path: Path) -> None:
    """The store is slow when a node stops: the log confirms its last entries while it closes."""
    node = await started(tmp_path, small_settings())
    (stream,) = await node.open_new(1)
    append, late = node.wal.append, list[Callable[[], None]]()

    def append_late(buffers: Sequence[Buffer], on_durable: Callable[[BaseException | None], None]) -> int:
        return append(buffers, lambda error: late.append(partial(on_durable, error)))

    node.wal.append = append_late  # type: ignore[method-assign]
    durable = stream.append(b"a", count=1, max_timestamp=-1)
    forced = asyncio.ensure_future(node.client.force_upload(at_once=True))
    while not (late and node.client._storage._sealing):
        await asyncio.sleep(0.001)
    await node.client._storage.stop()
    late.pop()()
    await durable
    with pytest.raises(StorageFailedError):
        await forced
    assert node.client._storage._pipeline.idle
    await node.crash()


async def test_a_stream_closed_by_another_process_is_reopened(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    await stream.append(b"a", count=1, max_timestamp=-1)
    await node.client.force_upload()
    node.cluster.streams[stream.stream_id].open = False  # this client was not notified
    (again,) = await node.client.open_streams([(stream.stream_id, StreamEpoch(stream.epoch + 2))])
    assert again is not stream
    with pytest.raises(StreamClosedError):
        stream.append(b"old", count=1, max_timestamp=-1)
    await again.append(b"b", count=1, max_timestamp=-1)
    assert payloads_of(await read_all(again)) == [b"a", b"b"]


async def test_a_deleted_stream_leaves_no_data_and_does_not_hold_back_the_trim_point(
    node: StorageNode,
) -> None:
    kept, deleted = await node.open_new(2)
    await asyncio.gather(append_all(kept, [b"kept"] * 10), append_all(deleted, [b"gone"] * 10))
    await node.client.delete_streams([deleted.stream_id])
    await node.client.force_upload()
    (uploaded,) = node.cluster.committed.values()
    assert [part.stream_id for part in uploaded.ranges] == [kept.stream_id]
    (lonely,) = await node.open_new(1)
    await append_all(lonely, [b"gone too"])
    await node.client.delete_streams([lonely.stream_id])
    puts = node.store.puts
    await node.client.force_upload()
    assert node.store.puts == puts
    client = await node.restart()
    assert client.recovery.records == 0


async def test_a_lagging_image_deletes_nothing(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    node.cluster.hidden_streams.add(stream.stream_id)
    await append_all(stream, [b"early"])
    await node.client.force_upload()
    assert stream.committed_offset == 1
    assert node.cluster.streams[stream.stream_id].end_offset == 1


async def test_trim_moves_the_start(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    await append_all(stream, [b"a", b"b", b"c"])
    await stream.trim(2)
    assert stream.start_offset == 2
    assert payloads_of(await read_all(stream)) == [b"c"]
    with pytest.raises(OffsetOutOfRangeError):
        stream.fetch_cached(1, 10)
    with pytest.raises(OffsetOutOfRangeError):
        await stream.trim(4)
    assert node.cluster.streams[stream.stream_id].start_offset == 2


async def test_a_put_with_a_lost_answer_is_recognised(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    inner_put = node.store.inner.put
    lost: list[str] = []

    async def put_and_lose(key: str, buffers: object) -> None:
        await inner_put(key, buffers)  # type: ignore[arg-type]
        if not lost:
            lost.append(key)
            raise ObjectStoreUnavailableError("the answer was lost")

    node.store.inner.put = put_and_lose  # type: ignore[method-assign]
    await append_all(stream, [b"once"])
    await node.client.force_upload()
    assert lost
    assert len(node.cluster.committed) == 1


async def test_expired_ids_are_replaced(tmp_path: Path) -> None:
    node = await started(tmp_path, small_settings(prepared_ttl_ms=200))
    (stream,) = await node.open_new(1)
    node.store.down = True
    await append_all(stream, [b"patience"])
    forced = asyncio.ensure_future(node.client.force_upload())
    while len(node.cluster.prepared) < 3:
        await asyncio.sleep(0.01)
    node.store.down = False
    await forced
    assert len(node.cluster.committed) == 1
    await node.close()
    assert node.failures == []
