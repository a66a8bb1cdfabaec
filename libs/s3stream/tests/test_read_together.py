"""A little of many streams, read at once: the same records as one by one, for far fewer GETs, and never an error."""

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
    """Streams whose records lie in two objects, after a restart: no cache knows them."""
    await node.start()
    streams = await node.open_new(STREAMS)
    for upload in range(2):
        for stream in streams:
            await append_all(stream, [b"%d of %d in %d" % (at, stream.stream_id, upload) for at in range(3)])
        await node.client.force_upload()
    await node.restart()
    return await node.open([stream.stream_id for stream in streams])


async def test_the_answers_are_those_of_single_reads(tmp_path: Path) -> None:
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


async def test_a_store_that_is_down_is_the_affair_of_whoever_reads_next(tmp_path: Path) -> None:
    node = await StorageNode.create(tmp_path)
    streams = await _two_uploads(node)
    node.store.down = True
    starts = [(stream.stream_id, 0) for stream in streams]
    assert await node.client.read_together(starts, ROOM) == [[]] * STREAMS
    node.store.down = False
    assert all(await node.client.read_together(starts, ROOM))
    await node.close()


async def test_what_is_not_in_objects_yet_is_left_out(tmp_path: Path) -> None:
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
    """A stream with one record in each of many objects, beside another one that keeps them apart."""
    await node.start()
    thin, other = await node.open_new(2)
    for upload in range(UPLOADS):
        await append_all(thin, [b"entry %d" % upload])
        await append_all(other, [b"x" * 5_000])
        await node.client.force_upload()
    await node.restart()
    (again,) = await node.open([thin.stream_id])
    return again


async def test_a_stream_with_little_in_each_of_many_objects_is_read_from_several_at_a_time(
    tmp_path: Path,
) -> None:
    """As the Meta stream of a partition whose broker died: its entries came with one upload after the other."""
    node = await StorageNode.create(tmp_path)
    stream = await _many_uploads(node)
    node.store.most_gets_at_once = 0
    (records,) = await node.client.read_together([(stream.stream_id, 0)], ROOM)
    assert [bytes(each.payload) for each in records] == [b"entry %d" % at for at in range(UPLOADS)]
    assert OBJECTS_AT_ONCE_MAX // 2 <= node.store.most_gets_at_once <= OBJECTS_AT_ONCE_MAX
    await node.close()


async def test_behind_an_object_that_cannot_be_read_nothing_is_told(tmp_path: Path) -> None:
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
