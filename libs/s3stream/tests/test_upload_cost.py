"""PUTs of uploads: their number follows the bytes, not the number of partitions
(docs/design/storage-and-write-path.md#small-rests).
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from ponor_runtime.system import SystemClock
from s3stream.settings import KIB, MIB
from s3stream.stream import Stream

from libs.s3stream.tests.storage_node import StorageNode, append_all, payloads_of, read_all, small_settings

RECORD = bytes(2 * KIB)
TOTAL_BYTES = 20 * MIB
SPLIT_BYTES = 256 * KIB


async def cost_of(path: Path, partitions: int, upload_size_bytes: int) -> int:
    """Return the PUTs for the same bytes in this many partitions, each with a data stream and a
    meta stream for its snapshots.
    """
    settings = small_settings(
        log_cache_bytes_max=16 * MIB, upload_size_bytes_max=upload_size_bytes, split_size_bytes=SPLIT_BYTES
    )
    node = await StorageNode.create(path, settings)
    await node.start()
    streams = await node.open_new(2 * partitions)
    data, meta = streams[:partitions], streams[partitions:]
    for index, stream in enumerate(data):
        node.client.on_upload(stream.stream_id, partial(snapshot, meta[index]))
    for start in range(0, TOTAL_BYTES // len(RECORD), 16):
        await asyncio.gather(
            *[
                data[number % partitions].append(RECORD, count=1, max_timestamp=-1)
                for number in range(start, start + 16)
            ]
        )
    await node.client.force_upload()
    assert node.failures == []
    assert sum(stream.committed_offset for stream in data) == TOTAL_BYTES // len(RECORD)
    await node.close()
    return node.store.puts


def snapshot(meta: Stream) -> bool:
    meta.append(b"producer state", count=1, max_timestamp=-1)
    return False


@pytest.mark.parametrize("upload_size_bytes", [SPLIT_BYTES, 400 * KIB, 1 * MIB, 4 * MIB])
async def test_one_and_500_partitions_need_the_same_number_of_puts(
    tmp_path: Path, upload_size_bytes: int
) -> None:
    one = await cost_of(tmp_path / "one", 1, upload_size_bytes)
    # Their data and meta streams fill one stream set object (`set_object_streams_max`); more
    # partitions need more objects.
    many = await cost_of(tmp_path / "many", 500, upload_size_bytes)
    # In such a short run, one seal more or less at either end is one PUT.
    assert abs(one - many) <= max(0.1 * many, 2), f"{one} PUTs for one partition, {many} for 500"


async def test_a_carried_rest_is_readable_and_survives_a_crash(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path, small_settings())
    await node.start()
    large, small = await node.open_new(2)
    for number in range(3):
        await append_all(small, [b"rest %d" % number])
        for _ in range(18):
            await append_all(large, [bytes(32 * KIB)])
        while large.committed_offset < large.next_offset:
            await asyncio.sleep(0.005)
            if node.store.puts > number:
                break
    while not node.cluster.commits:
        await asyncio.sleep(0.005)
    assert small.committed_offset == 0, "carried, not uploaded"
    wanted = [b"rest 0", b"rest 1", b"rest 2"]
    assert payloads_of(await read_all(small)) == wanted
    await node.restart()
    (small,) = await node.open([small.stream_id])
    assert payloads_of(await read_all(small)) == wanted
    await node.close()


class SteeredClock(SystemClock):
    """The test controls the age of data; sleeps take real time."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


INTERVAL_MS = 1_000


async def with_a_rest(path: Path) -> tuple[StorageNode, SteeredClock, Stream, Stream]:
    """Return a node whose first block left a rest, and its large and its small stream."""
    node = await StorageNode.create(path, small_settings(upload_interval_ms=INTERVAL_MS))
    node.clock = clock = SteeredClock()
    await node.start()
    large, small = await node.open_new(2)
    await append_all(small, [b"rest"])
    await append_all(large, [bytes(32 * KIB)] * 17)
    while large.committed_offset < 16:
        await asyncio.sleep(0.005)
    assert (node.store.puts, small.committed_offset) == (1, 0)
    return node, clock, large, small


async def test_an_old_rest_is_uploaded_with_the_next_block(tmp_path: Path) -> None:
    """An old rest does not get its own object: it shares one that is created anyway."""
    node, clock, large, small = await with_a_rest(tmp_path)
    clock.now_ms += INTERVAL_MS * 2 // 3
    await append_all(large, [bytes(32 * KIB)])
    clock.now_ms += INTERVAL_MS * 2 // 3  # the rest is too old now, the block is not
    await append_all(large, [bytes(32 * KIB)] * 16)
    while small.committed_offset == 0:
        await asyncio.sleep(0.005)
    assert node.store.puts == len(node.cluster.commits) == 2, "one object for each block"
    (shared,) = [commit.stream_set_object for commit in node.cluster.commits if commit.stream_set_object]
    assert [part.stream_id for part in shared.ranges] == [large.stream_id, small.stream_id]
    await node.close()


async def test_an_old_rest_is_uploaded_alone_without_new_data(tmp_path: Path) -> None:
    node, clock, _, small = await with_a_rest(tmp_path)
    while small.committed_offset == 0:
        clock.now_ms += INTERVAL_MS // 10
        await asyncio.sleep(0.01)
    assert node.store.puts == 2
    await node.close()
