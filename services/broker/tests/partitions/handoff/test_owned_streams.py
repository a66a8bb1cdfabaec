"""Deletion of streams that have a partition's tags and are not in its log metadata."""

from __future__ import annotations

from ponor_metadata.nouns.nodes import NO_EPOCH, NO_NODE
from ponor_metadata.nouns.streams import STREAMS, StreamRow
from ponor_runtime.identity import StreamEpoch, StreamId

from services.broker.tests.partition_rig import TOPIC_ID, PartitionRig

LEFTOVER = StreamId(900)


async def test_an_unknown_stream_is_deleted_while_the_image_lacks_a_new_one() -> None:
    """The image lags behind the added Time stream, so its rows are as many as the partition's streams."""
    rig = PartitionRig()
    partition = await rig.open()
    in_image = [stream.stream_id for stream in partition.streams]
    await rig.owned.add_time_streams([partition])
    rig.streams.streams[LEFTOVER] = rig.stream("time")
    for stream_id in (*in_image, LEFTOVER):
        tags = ("partition", "0", "topic", TOPIC_ID.hex())
        rig.image[STREAMS].put(StreamRow(stream_id, StreamEpoch(0), False, 0, 0, NO_NODE, NO_EPOCH, (), tags))
    assert len(in_image) + 1 == len(list(partition.streams))

    assert await rig.owned.delete_unknown([partition]) == [partition]

    assert LEFTOVER not in rig.streams.streams
    assert all(stream.stream_id in rig.streams.streams for stream in partition.streams)
