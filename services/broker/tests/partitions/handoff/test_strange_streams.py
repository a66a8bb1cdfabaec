"""Moves of a partition with an open stream that its log metadata does not name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ponor.common.v1 import error_pb2
from ponor_broker.partitions.handoff.move_operations import LeavingPartition, MoveOutcome
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.streams import STREAMS, StreamRow
from ponor_metadata.nouns.topics import TOPICS
from ponor_runtime.identity import NodeEpoch, NodeId, StreamEpoch, StreamId
from s3stream.ports import StreamState

from services.broker.tests.fetch_rig import NODE, OTHER_NODE, FetchRig, SilentController

STRANGER = StreamId(9_000)
OF_ANOTHER_BROKER = StreamId(9_001)


class OpenStreamsController(SilentController):
    """Elects no target while the image shows a stream of the partition open at the source, as the controllers
    do.
    """

    def __init__(self, image: MetadataImage) -> None:
        super().__init__()
        self._image = image
        self.refusals = 0

    async def leave(self, leaving: Sequence[LeavingPartition]) -> list[MoveOutcome]:
        self.left += leaving
        for state in [end for one in leaving for end in one.ends]:
            row = self._image[STREAMS].get(state.stream_id)
            if row is not None:
                assert (row.stream_epoch, row.end_offset) == (state.epoch, state.end_offset)
                self._image[STREAMS].put(row._replace(open=False))
        if any(row.open and row.node_id == NODE for row in self._image[STREAMS]):
            self.refusals += 1
            return [MoveOutcome(error_pb2.ERROR_CODE_MOVE_UNDER_WAY, "close it first") for _ in leaving]
        return [MoveOutcome(0, "") for _ in leaving]


def show_open(rig: FetchRig, stream_id: StreamId, node_id: NodeId) -> None:
    """The image shows a stream of partition 0 of topic t."""
    (topic,) = rig.image[TOPICS]
    tags = ("partition", "0", "topic", topic.topic_id.hex())
    writers = (0, node_id, 3)
    rig.image[STREAMS].put(
        StreamRow(stream_id, StreamEpoch(0), True, 3, 7, node_id, NodeEpoch(1), writers, tags)
    )


async def test_the_source_also_closes_open_streams_that_the_partition_does_not_have() -> None:
    rig = FetchRig()
    rig.controller = controller = OpenStreamsController(rig.image)
    async with rig:
        await rig.create("t")
        await rig.append("t")
        show_open(rig, STRANGER, NODE)
        show_open(rig, OF_ANOTHER_BROKER, OTHER_NODE)
        await rig.begin_move("t")
        for _ in range(50):
            await asyncio.sleep(0)
        known = [end.stream_id for end in controller.left[0].ends]
        assert STRANGER not in known
        assert controller.refusals == 1, "the first attempt speaks of the partition's own streams"
        assert controller.left[1].ends[len(known) :] == [StreamState(STRANGER, StreamEpoch(0), 3, 7)]
        assert len(controller.left) == 2, "it was elected"
        await rig.end_move("t")
        assert not rig.source
