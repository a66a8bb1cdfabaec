"""Partitions that are opened together: each one succeeds, waits or fails independently."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ponor_broker.partitions.handoff.handoff_target import RELEASES_IN_FLIGHT_MAX
from ponor_broker.partitions.handoff.opening import Opening, OpenRequest, Stage
from ponor_broker.partitions.identity import PartitionId
from ponor_metadata.nouns.streams import STREAMS, StreamRow
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, MoveCause, MoveRow, PartitionRow
from ponor_runtime.identity import NodeEpoch, StreamEpoch, StreamId
from s3stream.errors import ReadTimeoutError, StreamFencedError
from s3stream.records import StreamRecord

from services.broker.tests.fetch_rig import NODE, OTHER_NODE, FetchRig, no_topic_id
from services.broker.tests.memory_streams import MemoryStream, MemoryStreams
from services.broker.tests.partition_rig import TOPIC_ID, PartitionRig

MOVE_MS = 10_000


class SlowStreams(MemoryStreams):
    """Streams of which some cannot be read or opened."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: set[int] = set()
        self.fenced: set[int] = set()
        self.opens = 0
        self.is_slow = False

    async def open_streams(self, wanted: Sequence[tuple[StreamId, StreamEpoch]]) -> list[MemoryStream]:
        self.opens += 1
        if any(stream_id in self.fenced for stream_id, _ in wanted):
            raise StreamFencedError("told by the story")
        opened = await super().open_streams(wanted)
        for stream in opened:
            if stream.stream_id in self.unreadable:
                stream.fetch = self._fetch  # type: ignore[method-assign]
                stream.is_cold = True
        return opened

    async def _fetch(self, start_offset: int, max_bytes: int) -> list[StreamRecord]:
        if self.is_slow:
            await asyncio.Event().wait()
        raise ReadTimeoutError("told by the story")


def _meta_streams(streams: MemoryStreams) -> list[int]:
    return [stream_id for stream_id, tags in streams.tags.items() if tags["kind"] == "meta"]


async def test_an_unreadable_partition_fails_alone_and_is_retried() -> None:
    streams = SlowStreams()
    async with FetchRig(streams=streams) as rig:
        await rig.create("t", 3)
        bad = _meta_streams(streams)[1]
        streams.unreadable.add(bad)
        topic_id = rig.topic_ids["t"]
        for index in range(3):
            row = rig.image[PARTITIONS].get((topic_id, index))
            assert row is not None
            rig.image[PARTITIONS].put(row._replace(leader_epoch=1))
        await rig.follow()
        assert [rig.partitions.get("t", index) is not None for index in range(3)] == [True, False, True]
        streams.unreadable.clear()
        for _ in range(2_000):
            await asyncio.sleep(0)
        assert rig.partition("t", 1).leader_epoch == 1


async def test_an_operation_refused_because_of_one_partition_is_repeated_without_it() -> None:
    streams = SlowStreams()
    async with FetchRig(streams=streams) as rig:
        await rig.create("t", 8)
        bad = _meta_streams(streams)[5]
        streams.fenced.add(bad)
        topic_id = rig.topic_ids["t"]
        streams.opens = 0
        for index in range(8):
            row = rig.image[PARTITIONS].get((topic_id, index))
            assert row is not None
            rig.image[PARTITIONS].put(row._replace(leader_epoch=1))
        await rig.follow()
        served = [index for index in range(8) if rig.partitions.get("t", index) is not None]
        assert served == [0, 1, 2, 3, 4, 6, 7]
        # Refused at its epoch for good, it is given up: its leader asks for a new one.
        for _ in range(2_000):
            await asyncio.sleep(0)
        assert [(one.name.key, one.name.leader_epoch) for one in rig.controller.left][:1] == [
            ((topic_id, 5), 1)
        ]


async def test_a_blocked_read_is_interrupted_without_affecting_its_batch() -> None:
    streams = SlowStreams()
    rig = PartitionRig(streams=streams)
    await rig.open()
    streams.unreadable.add(_meta_streams(streams)[0])
    streams.is_slow = True
    told: list[Opening] = []
    opening = Opening(OpenRequest(PartitionId(TOPIC_ID, "t", 0), 1, {}), told.append)
    opening.begin_attempt()
    attempt = asyncio.ensure_future(rig.opener.open([opening], lambda _: None))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not attempt.done()
    opening.interrupt()
    assert await attempt == []
    assert told == [opening]
    assert opening.stage is Stage.WAITING
    assert opening.stream_ids, "what was opened for it is still known"


async def test_cancellations_for_many_awaited_partitions_share_a_task() -> None:
    async with FetchRig(tasks_max=20) as rig:
        topic_id = no_topic_id("t")
        await rig.create("t", 0)
        for index in range(40):
            tags = ("partition", str(index), "topic", topic_id.hex())
            stream = (StreamId(index), StreamEpoch(0), True, 0, 0, OTHER_NODE, NodeEpoch(1))
            rig.image[STREAMS].put(StreamRow(*stream, (0, OTHER_NODE, 0), tags))
            rig.image[PARTITIONS].put(PartitionRow(topic_id, index, NODE, 1, (NODE,)))
            await_move(rig, topic_id, index)
        await rig.follow()
        assert rig.controller.cancelled == []
        rig.clock.now_ms += MOVE_MS
        await rig.follow()
        assert [one.key for one in rig.controller.cancelled] == [(topic_id, index) for index in range(40)]


async def test_releases_of_many_unopened_partitions_share_tasks() -> None:
    async with FetchRig(tasks_max=RELEASES_IN_FLIGHT_MAX + 10) as rig:
        topic_id = no_topic_id("t")
        await rig.create("t", 0)
        for index in range(200):
            rig.image[PARTITIONS].put(PartitionRow(topic_id, index, NODE, 1, (NODE,)))
            await_move(rig, topic_id, index)
        await rig.follow()
        assert len(rig.controller.left) >= RELEASES_IN_FLIGHT_MAX
        for index in range(200):
            rig.image[MOVES].delete((topic_id, index))
            rig.image[PARTITIONS].put(PartitionRow(topic_id, index, OTHER_NODE, 2, (NODE,)))
        for _ in range(10):
            await rig.follow()
        assert {one.name.key for one in rig.controller.left} <= {(topic_id, index) for index in range(200)}
        assert list(rig.partitions._target.waiting) == []


def await_move(rig: FetchRig, topic_id: bytes, index: int) -> None:
    row = MoveRow(topic_id, index, NODE, OTHER_NODE, 0, MOVE_MS, MoveCause.REQUEST, "a story", "")
    rig.image[MOVES].put(row)


def test_a_stream_closed_at_the_epoch_is_not_opened() -> None:
    rig = PartitionRig()
    tags = ("partition", "0", "topic", TOPIC_ID.hex())
    for stream_id, epoch, is_open in ((1, 4, False), (2, 5, False), (3, 5, True), (4, -1, False)):
        rig.image[STREAMS].put(
            StreamRow(
                StreamId(stream_id), StreamEpoch(epoch), is_open, 0, 0, NODE, NodeEpoch(1), (0, NODE, 0), tags
            )
        )
    assert rig.owned._topics.streams_to_open((TOPIC_ID, 0), 5) == [1, 3]
