"""Limits other than memory: the log's size, streams per block, ranges per commit; and a failed log."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ponor_runtime.disk import Buffer
from s3stream.errors import AppendBackpressureError, PreparedExpiredError, StorageFailedError
from s3stream.file_wal import FileWal
from s3stream.settings import KIB, MIB

from libs.s3stream.tests.storage_node import StorageNode, append_all, payloads_of, read_all, small_settings


async def test_a_full_log_forces_uploads(tmp_path: Path) -> None:
    settings = small_settings(wal_bytes_max=2 * MIB, upload_size_bytes_max=2 * MIB)
    node = await StorageNode.create(tmp_path, settings)
    await node.start()
    (stream,) = await node.open_new(1)
    for number in range(300):
        await append_all(stream, [bytes([number % 256]) * 20 * KIB])
        assert node.wal.retained_bytes <= settings.wal_bytes_max
    assert len(node.cluster.commits) >= 3, "6 MB went through a window of 2 MiB"
    assert len(await read_all(stream)) == 300
    await node.close()
    assert node.failures == []


async def test_a_full_log_applies_backpressure_until_an_upload(tmp_path: Path) -> None:
    settings = small_settings(wal_bytes_max=2 * MIB, upload_size_bytes_max=2 * MIB)
    node = await StorageNode.create(tmp_path, settings)
    await node.start()
    (stream,) = await node.open_new(1)
    node.store.down = True
    pending: list[asyncio.Future[None]] = []
    with pytest.raises(AppendBackpressureError):
        while True:
            pending.append(stream.append(bytes(20 * KIB), count=1, max_timestamp=-1))
            await asyncio.sleep(0.001)
    node.store.down = False
    await asyncio.gather(*pending)
    assert len(await read_all(stream)) == len(pending)
    await node.close()


async def test_many_streams_seal_a_block(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path, small_settings(block_streams_max=20))
    await node.start()
    streams = await node.open_new(100)
    for stream in streams:
        await append_all(stream, [b"x"])
    await node.client.force_upload()
    widths = [
        len(commit.stream_set_object.ranges) for commit in node.cluster.commits if commit.stream_set_object
    ]
    assert sum(widths) == 100
    assert len(widths) >= 4
    await node.close()


async def test_wide_uploads_need_several_commits(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path, small_settings(commit_ranges_max=30))
    await node.start()
    streams = await node.open_new(100)
    await asyncio.gather(*[append_all(stream, [b"x"]) for stream in streams])
    tries = 0

    def expire(step: str) -> None:
        nonlocal tries
        if step == "commit:before":
            tries += 1
            if tries in {1, 3}:
                raise PreparedExpiredError("the lease ran out on the way")

    node.cluster.on_step = expire
    await node.client.force_upload()
    widths = [
        len(commit.stream_set_object.ranges) for commit in node.cluster.commits if commit.stream_set_object
    ]
    assert widths == [25, 25, 25, 25]
    assert all(stream.committed_offset == 1 for stream in streams)
    await node.close()
    assert node.failures == []


async def test_a_failed_log_fails_every_append_and_stops_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await StorageNode.create(tmp_path)
    await node.start()
    one, other = await node.open_new(2)
    await append_all(one, [b"acknowledged"])

    def fail(_: FileWal, __: Sequence[Buffer], on_durable: Callable[[BaseException | None], None]) -> int:
        broken = OSError(errno.EIO, "the disk is gone")
        asyncio.get_running_loop().call_soon(on_durable, broken)
        return 1

    monkeypatch.setattr(FileWal, "append", fail)
    with pytest.raises(StorageFailedError, match="disk is gone"):
        await one.append(b"lost", count=1, max_timestamp=-1)
    await asyncio.wait_for(node.failed.wait(), 60)
    assert isinstance(node.failures[0], StorageFailedError)
    with pytest.raises(StorageFailedError):
        other.append(b"refused", count=1, max_timestamp=-1)
    assert one.confirmed_offset == 1
    assert one.fetch_cached(0, 100) is not None, "what was acknowledged can still be read"
    monkeypatch.undo()
    await node.restart()
    (one,) = await node.open([one.stream_id])
    assert payloads_of(await read_all(one)) == [b"acknowledged"]
    await node.close()


async def test_a_stream_can_be_closed_and_reopened_on_the_same_node(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path)
    await node.start()
    (stream,) = await node.open_new(1)
    for life in range(4):
        await append_all(stream, [b"%d/%d" % (life, number) for number in range(10)])
        await stream.close()
        (stream,) = await node.open([stream.stream_id])
        assert stream.next_offset == stream.committed_offset == 10 * (life + 1)
    assert payloads_of(await read_all(stream)) == [b"%d/%d" % (a, b) for a in range(4) for b in range(10)]
    await append_all(stream, [b"still"])
    await node.restart()
    (stream,) = await node.open([stream.stream_id])
    assert payloads_of(await read_all(stream))[-1] == b"still"
    await node.close()
