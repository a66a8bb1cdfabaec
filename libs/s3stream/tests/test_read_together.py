"""A little of many streams, read at once: the same records as one by one, for far fewer GETs, and never an error."""

from __future__ import annotations

from pathlib import Path

from s3stream.stream import Stream

from libs.s3stream.tests.storage_node import StorageNode, append_all

STREAMS = 60
ROOM = 1 << 20


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
