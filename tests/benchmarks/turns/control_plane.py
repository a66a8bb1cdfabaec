"""Scenarios of the control plane: controller, metadata library and subscriber."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.settings import CompactionSettings, ControllerSettings
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS
from ponor_metadata.nouns.streams import RECLAIMS, STREAM_OBJECTS
from ponor_metadata.nouns.topics import DELETIONS, PARTITIONS, TOPICS
from s3stream.recovery import STREAMS_PER_CALL_MAX
from s3stream.settings import COMMIT_OBJECTS_MAX

from tests.benchmarks.turns.cluster_in_loop import ClusterInLoop, cluster_in_loop
from tests.benchmarks.turns.scenario import scenario
from tests.benchmarks.turns.turn_recorder import TurnRecorder

POLL_SECONDS: Final = 0.1
DELETED_OBJECTS: Final = 200_000
TRIMMED_STREAMS: Final = 3_000
SET_OBJECTS: Final = 500
STREAMS_PER_OPERATION: Final = 1_000
SNAPSHOT_OBJECTS: Final = 50_000
TIMES: Final = 20
"""Repetitions of an operation that is measured at its largest size."""
LIMITS: Final = ControllerSettings()
EAGER: Final = CompactionSettings(compaction_settle_ms=0, compaction_patience_ms=0)
COMMIT_STREAMS: Final = 1_500
LED_PARTITIONS: Final = 20_000
SETTLE_SECONDS: Final = 0.2
"""Timeout for subscribers to apply all batches."""


async def put_wide(cluster: ClusterInLoop, operations: int) -> None:
    """Operations of 1,000 keys each."""
    for number in range(operations):
        puts = [wire.PutKey(key=f"{number}/{each}", value=b"v" * 16) for each in range(1_000)]
        await cluster.ask(put_keys=wire.PutKeys(puts=puts))


async def reclaimed(cluster: ClusterInLoop) -> None:
    """Wait until the subscriber sees that nothing is left to reclaim."""
    while True:
        image = cluster.subscription.image
        if not len(image[RECLAIMS]) and not len(image[DELETIONS]):
            return
        await asyncio.sleep(POLL_SECONDS)


@scenario("put-keys", "20 operations of 1,000 keys each")
async def put_keys(recorder: TurnRecorder) -> None:
    """The widest operation on keys, applied by the controller and by a subscriber."""
    async with cluster_in_loop() as cluster:
        recorder.start_recording()
        await put_wide(cluster, 20)
        recorder.stop_recording()


@scenario(
    "open-streams",
    f"{TIMES} times {STREAMS_PER_CALL_MAX} streams are created and opened, twice at the same time",
)
async def open_streams(recorder: TurnRecorder) -> None:
    """The largest operation that brokers send. Controllers accept twice as many streams."""
    async with cluster_in_loop() as cluster:

        async def create_and_open() -> None:
            for _ in range(TIMES // 2):
                await cluster.open_streams(STREAMS_PER_CALL_MAX, {})

        recorder.start_recording()
        await asyncio.gather(create_and_open(), create_and_open())
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.stop_recording()


@scenario("prepare-objects", f"{TIMES} reservations of {LIMITS.prepared_count_max:,} object ids each")
async def prepare_objects(recorder: TurnRecorder) -> None:
    """The largest accepted reservation; brokers request half of it."""
    async with cluster_in_loop() as cluster:
        recorder.start_recording()
        for _ in range(TIMES):
            await cluster.prepare(LIMITS.prepared_count_max)
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.stop_recording()


@scenario("upload-set-object", f"{TIMES} upload commits of {COMMIT_STREAMS:,} ranges each")
async def upload_set_object(recorder: TurnRecorder) -> None:
    """The largest commit of a stream set object: brokers make 1,000 ranges, compactors 1,500.
    Controllers accept 2,000, which brokers of earlier versions made.
    """
    async with cluster_in_loop() as cluster:
        streams = await cluster.open_streams(COMMIT_STREAMS, {})
        recorder.start_recording()
        for at in range(TIMES):
            await cluster.commit_set_object(streams, at)
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.stop_recording()


@scenario(
    "upload-stream-objects", f"{TIMES} upload commits of {LIMITS.commit_objects_max} stream objects each"
)
async def upload_stream_objects(recorder: TurnRecorder) -> None:
    """The largest accepted commit of stream objects."""
    async with cluster_in_loop() as cluster:
        (stream_id,) = await cluster.open_streams(1, {})
        recorder.start_recording()
        await cluster.commit_stream_objects(stream_id, TIMES * LIMITS.commit_objects_max)
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.stop_recording()


@scenario(
    "compaction-join",
    f"{EAGER.compaction_ranges_max // EAGER.compaction_streams_max} objects of"
    f" {EAGER.compaction_streams_max:,} streams are joined",
)
async def compaction_join(recorder: TurnRecorder) -> None:
    """The widest task: its lease and its commit."""
    async with cluster_in_loop(ControllerSettings(compaction=EAGER)) as cluster:
        streams = await cluster.open_streams(EAGER.compaction_streams_max, {})
        for at in range(EAGER.compaction_ranges_max // EAGER.compaction_streams_max):
            await cluster.commit_set_object(streams, at)
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.start_recording()
        await cluster.compact(streams, own=0)
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.stop_recording()


@scenario(
    "compaction-split",
    f"{COMMIT_OBJECTS_MAX - 1} of {EAGER.compaction_streams_max:,} streams get objects of their own",
)
async def compaction_split(recorder: TurnRecorder) -> None:
    """The first step of a forced split of the widest object: stream objects, and a set object of the rest."""
    compaction = replace(EAGER, compaction_force_split_ms=1)
    async with cluster_in_loop(ControllerSettings(compaction=compaction)) as cluster:
        streams = await cluster.open_streams(EAGER.compaction_streams_max, {})
        await cluster.commit_set_object(streams, 0)
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.start_recording()
        await cluster.compact(streams, own=COMMIT_OBJECTS_MAX - 1)
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.stop_recording()


@scenario("topics", f"{TIMES} topics of {LIMITS.partitions_per_topic_max:,} partitions are made and deleted")
async def topics(recorder: TurnRecorder) -> None:
    """The largest accepted topic."""
    async with cluster_in_loop() as cluster:
        recorder.start_recording()
        for number in range(TIMES):
            topic_id = await cluster.create_topic(f"t{number}", LIMITS.partitions_per_topic_max)
            await cluster.ask(delete_topic=wire.DeleteTopic(topic_id=topic_id))
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.stop_recording()


@scenario("register-again", f"a broker registers again and leads {LED_PARTITIONS:,} partitions")
async def register_again(recorder: TurnRecorder) -> None:
    """The leader epoch of every partition rises, in batches."""
    async with cluster_in_loop() as cluster:
        for number in range(LED_PARTITIONS // LIMITS.partitions_per_topic_max):
            await cluster.create_topic(f"t{number}", LIMITS.partitions_per_topic_max)
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.start_recording()
        await cluster.register_again()
        await asyncio.sleep(SETTLE_SECONDS)
        recorder.stop_recording()
        assert {row.leader_epoch for row in cluster.subscription.image[PARTITIONS]} == {1}


@scenario("delete-topic", f"a topic with {DELETED_OBJECTS:,} stream objects is deleted")
async def delete_topic(recorder: TurnRecorder) -> None:
    """The operation, and the duty that destroys the objects."""
    async with cluster_in_loop() as cluster:
        topic = await cluster.create_topic("t")
        (stream_id,) = await cluster.open_streams(1, {"topic": topic.hex(), "partition": "0"})
        await cluster.commit_stream_objects(stream_id, DELETED_OBJECTS)
        recorder.start_recording()
        await cluster.ask(delete_topic=wire.DeleteTopic(topic_id=topic))
        while len(cluster.subscription.image[TOPICS]):
            await asyncio.sleep(POLL_SECONDS)
        await reclaimed(cluster)
        recorder.stop_recording()
        assert len(cluster.subscription.image[STREAM_OBJECTS]) == 0


@scenario(
    "trim-streams",
    f"{TRIMMED_STREAMS:,} streams, {COMMIT_STREAMS:,} of them in each of"
    f" {SET_OBJECTS * TRIMMED_STREAMS // COMMIT_STREAMS:,} stream set objects, are trimmed",
)
async def trim_streams(recorder: TurnRecorder) -> None:
    """Retention of all streams of a broker: the operations, and the duty that destroys the objects."""
    async with cluster_in_loop() as cluster:
        streams = await cluster.open_streams(TRIMMED_STREAMS, {})
        for at in range(SET_OBJECTS):
            for first in range(0, TRIMMED_STREAMS, COMMIT_STREAMS):
                await cluster.commit_set_object(streams[first : first + COMMIT_STREAMS], at)
        recorder.start_recording()
        for first in range(0, TRIMMED_STREAMS, STREAMS_PER_OPERATION):
            some = streams[first : first + STREAMS_PER_OPERATION]
            states = [wire.StreamState(stream_id=each, start_offset=SET_OBJECTS) for each in some]
            await cluster.ask(trim_streams=wire.TrimStreams(streams=states))
        while not len(cluster.subscription.image[RECLAIMS]):
            await asyncio.sleep(POLL_SECONDS)
        await reclaimed(cluster)
        recorder.stop_recording()
        assert len(cluster.subscription.image[STREAM_SET_OBJECTS]) == 0


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
