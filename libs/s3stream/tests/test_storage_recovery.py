"""Recovery of a real log: after a crash at any step, every acknowledged record is present once and in
order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from ponor_runtime.identity import StreamId
from s3stream.errors import CommitRefusedError, S3StreamError, StreamFencedError, WalCorruptError
from s3stream.settings import KIB
from s3stream.stream import Stream

from libs.s3stream.tests.cluster_model import ClusterNode
from libs.s3stream.tests.storage_node import StorageNode, append_all, payloads_of, read_all, small_settings


class CrashError(Exception):
    """The process crashes here."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[StorageNode]:
    node = await StorageNode.create(tmp_path, small_settings())
    await node.start()
    yield node
    await node.close()


async def reopened(node: StorageNode, streams: list[Stream]) -> list[Stream]:
    return await node.open([stream.stream_id for stream in streams])


async def test_nothing_acknowledged_is_lost_by_a_crash(node: StorageNode) -> None:
    streams = await node.open_new(5)
    payloads = [number.to_bytes(2, "big") * KIB for number in range(60)]
    for stream in streams:
        await append_all(stream, payloads)
    client = await node.restart()
    assert client.recovery.streams == 5
    assert client.recovery.records + client.recovery.skipped_committed == 300
    assert client.recovery.bytes == client.recovery.records * (2 * KIB + 40)
    again = await reopened(node, streams)
    for stream in again:
        assert payloads_of(await read_all(stream)) == payloads
        await append_all(stream, [b"and on"])
        assert payloads_of(await read_all(stream)) == [*payloads, b"and on"]


async def test_a_clean_close_leaves_nothing_to_recover(node: StorageNode) -> None:
    streams = await node.open_new(3)
    for stream in streams:
        await append_all(stream, [b"x"] * 10)
    assert await node.client.close()
    assert not any(row.open for row in node.cluster.streams.values())
    client = await node.start()
    assert (client.recovery.streams, client.recovery.records) == (0, 0)
    for stream in await reopened(node, streams):
        assert payloads_of(await read_all(stream)) == [b"x"] * 10


@pytest.mark.parametrize("image_lags", [False, True])
async def test_a_deleted_stream_does_not_prevent_a_clean_close(
    node: StorageNode, monkeypatch: pytest.MonkeyPatch, *, image_lags: bool
) -> None:
    kept, deleted, closing = await node.open_new(3)
    for stream in (kept, deleted, closing):
        await append_all(stream, [b"x"] * 10)
    await node.client.force_upload()
    if image_lags:
        monkeypatch.setattr(ClusterNode, "exists", lambda *_: True)
    else:
        await append_all(deleted, [b"dropped"])
        await append_all(closing, [b"dropped"])
    for stream in (deleted, closing):
        del node.cluster.streams[stream.stream_id]
    async with asyncio.timeout(60):
        await closing.close()
        assert await node.client.close()
    monkeypatch.undo()
    client = await node.start()
    assert client.recovery.records == 0
    (again,) = await reopened(node, [kept])
    assert payloads_of(await read_all(again)) == [b"x"] * 10


async def test_close_without_a_controller_times_out_and_leaves_streams_to_recovery(
    node: StorageNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unanswered(*_: object) -> None:
        await asyncio.Event().wait()

    (stream,) = await node.open_new(1)
    await append_all(stream, [b"kept"])
    await node.client.force_upload()
    monkeypatch.setattr(ClusterNode, "close_streams", unanswered)
    assert not await node.client.close(upload_timeout_ms=50)
    monkeypatch.undo()
    client = await node.start()
    assert client.recovery.records == 0
    assert not any(row.open for row in node.cluster.streams.values())
    (again,) = await reopened(node, [stream])
    assert payloads_of(await read_all(again)) == [b"kept"]


async def test_close_without_a_store_leaves_data_to_recovery(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    await append_all(stream, [b"kept"])
    node.store.down = True
    assert not await node.client.close(upload_timeout_ms=50)
    node.store.down = False
    client = await node.start()
    assert client.recovery.records == 1
    (again,) = await reopened(node, [stream])
    assert payloads_of(await read_all(again)) == [b"kept"]


STEPS = [
    f"{call}:{moment}" for call in ("open", "prepare", "commit", "close") for moment in ("before", "after")
] + ["put:before"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("occurrence", [1, 2, 3])
async def test_crash_at_every_step(node: StorageNode, step: str, occurrence: int) -> None:
    """The process crashes at one step of normal work or recovery, and the next recovery crashes at
    the same step.
    """
    seen = 0
    armed = True

    def die(name: str) -> None:
        nonlocal seen
        if armed and name == step:
            seen += 1
            if seen % occurrence == 0:
                raise CrashError(name)

    node.cluster.on_step = die
    node.store.before_put = lambda _: die("put:before")
    acknowledged: dict[StreamId, list[bytes]] = {}
    for life in range(4):
        with suppress(CrashError, S3StreamError):
            await one_life(node, acknowledged, life)
        armed = life < 2
        while True:
            try:
                await node.restart()
                break
            except* CrashError:
                armed = False
    node.cluster.on_step = lambda _: None
    for stream in await node.open(list(acknowledged)):
        got = payloads_of(await read_all(stream))
        wanted = acknowledged[stream.stream_id]
        assert [payload for payload in got if payload in wanted] == wanted
        assert len(set(got)) == len(got), "none twice"


async def one_life(node: StorageNode, acknowledged: dict[StreamId, list[bytes]], life: int) -> None:
    if not acknowledged:
        acknowledged.update((stream_id, []) for stream_id in await node.client.create_streams([{}] * 3))
    streams = await node.open(list(acknowledged))
    for number in range(12):
        for stream in streams:
            payload = f"{stream.stream_id}/{life}/{number}/".encode() + bytes(16 * KIB)
            await stream.append(payload, count=1, max_timestamp=-1)
            acknowledged[stream.stream_id].append(payload)
    forced = asyncio.ensure_future(node.client.force_upload())
    failed = asyncio.ensure_future(node.failed.wait())
    await asyncio.wait([forced, failed], return_when=asyncio.FIRST_COMPLETED)
    failed.cancel()
    if not forced.done():
        forced.cancel()
        return
    await forced
    await streams[0].close()


async def test_recovery_uploads_in_bounded_chunks(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path, small_settings(recovery_chunk_bytes_max=64 * KIB))
    await node.start()
    streams = await node.open_new(4)
    node.store.down = True
    for stream in streams:
        await append_all(stream, [bytes([number]) * 4 * KIB for number in range(20)])
    node.store.down = False
    await node.restart()
    assert len(node.cluster.commits) >= 5
    for stream in await reopened(node, streams):
        assert len(await read_all(stream)) == 20
    await node.close()


async def test_missing_records_stop_the_recovery_with_an_error(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    await append_all(stream, [b"a"] * 10)
    await node.crash()
    # The controller's end of the stream is below the start of the log: acknowledged records are missing.
    node.cluster.streams[stream.stream_id].end_offset = 0
    await node.start()
    (stream,) = await reopened(node, [stream])
    await append_all(stream, [b"b"] * 10)
    await node.crash()
    row = node.cluster.streams[stream.stream_id]
    row.end_offset = 15
    row.end_offset -= 100
    with pytest.raises(WalCorruptError, match=rf"stream {stream.stream_id}: offsets \[-85, 10\)"):
        await node.start()
    row.end_offset += 100
    row.epoch -= 1
    with pytest.raises(WalCorruptError, match="epoch"):
        await node.start()
    row.epoch += 1
    client = await node.start()
    assert client.recovery.records == 5


async def test_a_new_log_under_open_streams_is_refused(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path, small_settings())
    await node.start()
    (stream,) = await node.open_new(1)
    await append_all(stream, [b"precious"])
    await node.crash()
    (tmp_path / "wal").rename(tmp_path / "elsewhere")
    with pytest.raises(WalCorruptError, match="is new"):
        await node.start()
    (tmp_path / "wal").rename(tmp_path / "useless")
    (tmp_path / "elsewhere").rename(tmp_path / "wal")
    client = await node.start()
    assert client.recovery.records == 1
    await node.close()


async def test_a_refused_commit_stops_the_node(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    await append_all(stream, [b"x"])
    node.cluster.node_epoch += 1
    with pytest.raises(S3StreamError):
        await node.client.force_upload()
    await node.failed.wait()
    assert any(isinstance(error, CommitRefusedError) for error in node.failures)
    with pytest.raises(S3StreamError):
        stream.append(b"y", count=1, max_timestamp=-1)


async def test_a_fenced_stream_cannot_be_closed(node: StorageNode) -> None:
    (stream,) = await node.open_new(1)
    await append_all(stream, [b"x"])
    await node.client.force_upload()
    node.cluster.streams[stream.stream_id].epoch += 1
    with pytest.raises(StreamFencedError):
        await stream.close()
    (again,) = await node.open_new(1)
    await append_all(again, [b"the node lives on"])


async def test_records_of_a_log_whose_loss_was_accepted_are_ignored(
    node: StorageNode,
) -> None:
    """The operator closes the streams of a lost node, and its disk is found again: its records of
    the earlier epoch are not used.
    """
    (stream,) = await node.open_new(1)
    await append_all(stream, [b"old-%d" % number for number in range(3)])
    await node.crash()
    node.cluster.streams[stream.stream_id].open = False  # closed at its committed end
    await node.start()
    (again,) = await node.open([stream.stream_id])
    await append_all(again, [b"new-%d" % number for number in range(5)])
    await node.crash()
    await node.start()
    report = node.client.recovery
    assert (report.records, report.skipped_older_epoch) == (5, 3)
    (once_more,) = await node.open([stream.stream_id])
    assert payloads_of(await read_all(once_more)) == [b"new-%d" % number for number in range(5)]
