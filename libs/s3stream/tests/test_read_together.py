"""Combined reads of many streams: the same records as individual reads, far fewer GETs, and no errors."""

from __future__ import annotations

from pathlib import Path

from s3stream.objects.keys import parse_object_key
from s3stream.read_together import OBJECTS_AT_ONCE_MAX
from s3stream.stream import Stream

from libs.s3stream.tests.storage_node import StorageNode, append_all

STREAMS = 60
ROOM = 1 << 20
UPLOADS = 40


async def _two_uploads(node: StorageNode) -> list[Stream]:
    """Streams with records in two objects, and empty caches, as after a restart."""
    await node.start()
    streams = await node.open_new(STREAMS)
    for upload in range(2):
        for stream in streams:
            await append_all(stream, [b"%d of %d in %d" % (at, stream.stream_id, upload) for at in range(3)])
        await node.client.force_upload()
    await node.restart()
    return await node.open([stream.stream_id for stream in streams])


async def test_the_results_equal_those_of_single_reads(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path)
    streams = await _two_uploads(node)
    before = node.store.gets
    starts = [(stream.stream_id, number % 6) for number, stream in enumerate(streams)]
    together = await node.client.read_together(starts, ROOM)
    assert node.store.gets - before <= STREAMS // 4
    for stream, (_, start), records in zip(streams, starts, together, strict=True):
        assert records[-1].end_offset == stream.confirmed_offset == 6
        assert records[0].base_offset == start
        one_by_one = await stream.fetch(start, ROOM)
        assert [(each.base_offset, bytes(each.payload)) for each in one_by_one] == [
            (each.base_offset, bytes(each.payload)) for each in records[: len(one_by_one)]
        ]
    await node.close()


async def test_a_store_failure_is_left_to_the_single_read(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path)
    streams = await _two_uploads(node)
    node.store.down = True
    starts = [(stream.stream_id, 0) for stream in streams]
    assert await node.client.read_together(starts, ROOM) == [[]] * STREAMS
    node.store.down = False
    assert all(await node.client.read_together(starts, ROOM))
    await node.close()


async def test_streams_without_objects_are_omitted(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path)
    await node.start()
    uploaded, young = await node.open_new(2)
    await append_all(uploaded, [b"old"])
    await node.client.force_upload()
    await append_all(uploaded, [b"new"])
    await append_all(young, [b"new"])
    parts = [(young.stream_id, 0), (uploaded.stream_id, 0), (uploaded.stream_id, 2)]
    together = await node.client.read_together(parts, ROOM)
    assert [[bytes(each.payload) for each in records] for records in together] == [[], [b"old"], []]
    await node.close()


async def _many_uploads(node: StorageNode) -> Stream:
    """Create a stream with one record in each of many objects, and another one that separates them."""
    await node.start()
    thin, other = await node.open_new(2)
    for upload in range(UPLOADS):
        await append_all(thin, [b"entry %d" % upload])
        await append_all(other, [b"x" * 5_000])
        await node.client.force_upload()
    await node.restart()
    (again,) = await node.open([thin.stream_id])
    return again


async def test_a_stream_in_many_objects_is_read_from_several_concurrently(
    tmp_path: Path,
) -> None:
    """The layout of the Meta stream of a partition whose broker failed: each upload contains a few
    of its entries.
    """
    node = await StorageNode.create(tmp_path)
    stream = await _many_uploads(node)
    node.store.most_gets_at_once = 0
    (records,) = await node.client.read_together([(stream.stream_id, 0)], ROOM)
    assert [bytes(each.payload) for each in records] == [b"entry %d" % at for at in range(UPLOADS)]
    assert OBJECTS_AT_ONCE_MAX // 2 <= node.store.most_gets_at_once <= OBJECTS_AT_ONCE_MAX
    await node.close()


async def test_the_result_ends_before_an_unreadable_object(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path)
    stream = await _many_uploads(node)
    keys = sorted([info.key async for info in node.store.list("")], key=lambda key: parse_object_key(key)[1])
    node.store.unreadable = keys[20]
    (records,) = await node.client.read_together([(stream.stream_id, 0)], ROOM)
    assert [each.base_offset for each in records] == list(range(20))
    node.store.unreadable = ""
    (records,) = await node.client.read_together([(stream.stream_id, 0)], ROOM)
    assert len(records) == UPLOADS
    await node.close()
