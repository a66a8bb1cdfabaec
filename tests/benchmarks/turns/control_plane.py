"""Scenarios of the control plane: controller, metadata library and subscriber."""

from __future__ import annotations

import asyncio
from typing import Final

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.settings import ControllerSettings

from tests.benchmarks.turns.cluster_in_loop import ClusterInLoop, cluster_in_loop
from tests.benchmarks.turns.scenario import scenario
from tests.benchmarks.turns.turn_recorder import TurnRecorder

POLL_SECONDS: Final = 0.1
DELETED_OBJECTS: Final = 200_000
TRIMMED_STREAMS: Final = 3_000
SET_OBJECTS: Final = 500
STREAMS_PER_OPERATION: Final = 1_000
SNAPSHOT_OBJECTS: Final = 50_000


async def put_wide(cluster: ClusterInLoop, operations: int) -> None:
    """Operations of 1,000 keys each."""
    for number in range(operations):
        puts = [wire.PutKey(key=f"{number}/{each}", value=b"v" * 16) for each in range(1_000)]
        await cluster.ask(put_keys=wire.PutKeys(puts=puts))


async def reclaimed(cluster: ClusterInLoop) -> None:
    """Wait until the subscriber sees that nothing is left to reclaim."""
    while True:
        image = cluster.subscription.image
        if not len(image.reclaims) and not len(image.deletions):
            return
        await asyncio.sleep(POLL_SECONDS)


@scenario("put-keys", "20 operations of 1,000 keys each")
async def put_keys(recorder: TurnRecorder) -> None:
    """The widest operation on keys, applied by the controller and by a subscriber."""
    async with cluster_in_loop() as cluster:
        recorder.start_recording()
        await put_wide(cluster, 20)
        recorder.stop_recording()


@scenario("delete-topic", f"a topic with {DELETED_OBJECTS:,} stream objects is deleted")
async def delete_topic(recorder: TurnRecorder) -> None:
    """The operation, and the duty that destroys the objects."""
    async with cluster_in_loop() as cluster:
        topic = await cluster.create_topic("t")
        (stream_id,) = await cluster.open_streams(1, {"topic": topic.hex(), "partition": "0"})
        await cluster.commit_stream_objects(stream_id, DELETED_OBJECTS)
        recorder.start_recording()
        await cluster.ask(delete_topic=wire.DeleteTopic(topic_id=topic))
        while len(cluster.subscription.image.topics):
            await asyncio.sleep(POLL_SECONDS)
        await reclaimed(cluster)
        recorder.stop_recording()
        assert len(cluster.subscription.image.stream_objects) == 0


@scenario("trim-streams", f"{TRIMMED_STREAMS:,} streams in {SET_OBJECTS} stream set objects are trimmed")
async def trim_streams(recorder: TurnRecorder) -> None:
    """Retention of all streams of a broker: the operations, and the duty that destroys the objects."""
    async with cluster_in_loop() as cluster:
        streams = await cluster.open_streams(TRIMMED_STREAMS, {})
        for at in range(SET_OBJECTS):
            await cluster.commit_set_object(streams, at)
        recorder.start_recording()
        for first in range(0, TRIMMED_STREAMS, STREAMS_PER_OPERATION):
            some = streams[first : first + STREAMS_PER_OPERATION]
            states = [wire.StreamState(stream_id=each, start_offset=SET_OBJECTS) for each in some]
            await cluster.ask(trim_streams=wire.TrimStreams(streams=states))
        while not len(cluster.subscription.image.reclaims):
            await asyncio.sleep(POLL_SECONDS)
        await reclaimed(cluster)
        recorder.stop_recording()
        assert len(cluster.subscription.image.stream_set_objects) == 0


@scenario(
    "snapshot", f"snapshots of an image with {SNAPSHOT_OBJECTS:,} objects are written while keys are put"
)
async def snapshot(recorder: TurnRecorder) -> None:
    """A snapshot every ten batches."""
    async with cluster_in_loop(ControllerSettings(snapshot_batches=10)) as cluster:
        (stream_id,) = await cluster.open_streams(1, {})
        await cluster.commit_stream_objects(stream_id, SNAPSHOT_OBJECTS)
        recorder.start_recording()
        await put_wide(cluster, 40)
        recorder.stop_recording()
