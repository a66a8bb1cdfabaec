"""Compaction workers that crash and pause, with controllers that fail over and a broker that
uploads and trims: nothing is lost or duplicated, and compaction ends.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import replace

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.compaction.coverage import Run, live
from ponor_controller.settings import CompactionSettings
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.compactions import COMPACTIONS
from ponor_metadata.nouns.nodes import NodeRole
from ponor_metadata.nouns.objects import OBJECTS, OBJECTS_WAITING, STREAM_SET_OBJECTS, ObjectState
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAMS
from ponor_metadata.tables.ranges import join_interpreted
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import StreamId
from ponor_simulation.process import wait_until

from services.controller.tests.quorum_world import ADDRESSES, SETTINGS, Clients, QuorumWorld

SEEDS = range(int(os.environ.get("PONOR_SEEDS", "3")))
EAGER = replace(
    SETTINGS,
    destroy_delay_ms=0,
    compaction=CompactionSettings(
        compaction_settle_ms=0,
        compaction_patience_ms=100,
        compaction_fan_in=3,
        compaction_sources_max=6,
        compaction_force_split_ms=5_000,
        compaction_survey_interval_ms=100,
    ),
)
UPLOADS = 60
LEASE_MS = 800


class Uploader:
    """A broker with three streams."""

    def __init__(self) -> None:
        self._clients: Clients | None = None
        self.done = False

    @property
    def image(self) -> MetadataImage | None:
        """The broker's followed image; a snapshot replaces the object. None before the start."""
        return None if self._clients is None else self._clients.subscription.image

    async def run(self, clients: Clients) -> None:
        self._clients = clients
        session, randomness = clients.session, clients.runtime.randomness
        tags = wire.CreateStreams(streams=[wire.StreamTags()] * 3)
        made = await session.submit(wire.Operation(create_streams=tags))
        streams = list(made.streams_created.stream_ids)
        opening = wire.OpenStreams(
            streams=[wire.OpenStream(stream_id=each, stream_epoch=1) for each in streams]
        )
        await session.submit(wire.Operation(open_streams=opening))
        ends, starts = dict.fromkeys(streams, 0), dict.fromkeys(streams, 0)
        for _ in range(UPLOADS):
            (object_id,) = await prepare(clients, 1)
            body = wire.CommitUpload()
            body.stream_set_object.object_id = object_id
            body.stream_set_object.size_bytes = 1_000
            for each in streams:
                length = 1 + randomness.below(5)
                body.stream_set_object.ranges.add(
                    stream_id=each, stream_epoch=1, start_offset=ends[each], end_offset=ends[each] + length
                )
                ends[each] += length
            await session.submit(wire.Operation(commit_upload=body))
            each = streams[randomness.below(3)]
            if randomness.below(4) == 0 and starts[each] < ends[each]:
                starts[each] += 1 + randomness.below(ends[each] - starts[each])
                state = wire.StreamState(stream_id=each, stream_epoch=1, start_offset=starts[each])
                await session.submit(wire.Operation(trim_streams=wire.TrimStreams(streams=[state])))
            await clients.runtime.clock.sleep(0.1)
        self.done = True


class Compactor:
    """A worker without a store that copies offsets."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    async def run(self, clients: Clients) -> None:
        while True:
            lease = wire.LeaseCompaction(ttl_ms=LEASE_MS, source_bytes_max=1 << 40)
            result = await clients.session.submit(wire.Operation(lease_compaction=lease))
            if result.WhichOneof("outcome") == "done":
                await clients.runtime.clock.sleep(0.2)
                continue
            try:
                await self._execute(clients, result.compaction_granted)
            except OperationError:
                self.outcomes["refused"] += 1

    async def _execute(self, clients: Clients, task: wire.CompactionGranted) -> None:
        await clients.subscription.wait_for(task.planned_index)
        runs = held_runs(clients.subscription.image, task)
        if runs is None:
            self.outcomes["unknown"] += 1
            return
        await clients.runtime.clock.sleep(clients.runtime.randomness.below(1_000) / 1_000)
        renewal = wire.RenewCompaction(task_id=task.task_id, token=task.token, ttl_ms=LEASE_MS)
        await clients.session.submit(wire.Operation(renew_compaction=renewal))
        split = task.kind != records_pb2.COMPACTION_KIND_SET_OBJECTS
        ids = iter(await prepare(clients, max(1, len(runs))))
        body = wire.CommitCompaction(task_id=task.task_id, token=task.token, planned_index=task.planned_index)
        for stream_id, start, end in runs:
            uploaded = wire.UploadedRange(stream_id=stream_id, start_offset=start, end_offset=end)
            if split:
                body.stream_objects.add(object_id=next(ids), size_bytes=500, range=uploaded)
            else:
                body.stream_set_object.size_bytes = 3_000
                body.stream_set_object.ranges.append(uploaded)
        if not split and runs:
            body.stream_set_object.object_id = next(ids)
        result = await clients.session.submit(wire.Operation(commit_compaction=body))
        outcome = result.compaction_outcome.result
        self.outcomes[wire.CompactionOutcome.Result.Name(outcome)] += 1


async def prepare(clients: Clients, count: int) -> list[int]:
    body = wire.PrepareObjects(count=count, ttl_ms=60_000)
    reserved = (await clients.session.submit(wire.Operation(prepare_objects=body))).objects_reserved
    return list(range(reserved.first_object_id, reserved.first_object_id + reserved.count))


def held_runs(image: MetadataImage, task: wire.CompactionGranted) -> list[Run] | None:
    """Live ranges of the sources; None if the image lacks one of them."""
    starts = {each.stream_id: each.start_offset for each in task.streams}
    pieces: list[Run] = []
    for source in task.sources:
        single = image[STREAM_OBJECTS].get(source.object_id)  # type: ignore[arg-type]
        several = image[STREAM_SET_OBJECTS].get(source.object_id)  # type: ignore[arg-type]
        if single is not None:
            pieces.append((single.stream_id, single.start_offset, single.end_offset))
        elif several is not None:
            pieces.extend(
                (each.stream_id, each.start_offset, each.end_offset) for each in several.ranges.decoded
            )
        else:
            return None
    return live(join_interpreted(pieces), starts.get)


def require_all_found(image: MetadataImage) -> None:
    validate(image)
    for row in image[STREAMS]:
        offset = row.start_offset
        for piece in find_pieces(image, StreamId(row.stream_id), offset, row.end_offset, limit=10_000):
            assert piece.start_offset == offset
            offset = piece.end_offset
        assert offset == row.end_offset


@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_lose_nothing_and_compaction_ends(seed: int) -> None:
    world = QuorumWorld(seed, EAGER)
    uploader, workers = Uploader(), [Compactor(), Compactor()]
    world.node("broker", uploader.run)
    processes = [
        world.node(f"worker{number}", worker.run, number=500 + number, role=NodeRole.COMPACTOR)
        for number, worker in enumerate(workers)
    ]

    async def story() -> None:
        world.start()
        await wait_until(lambda: uploader.image is not None)
        assert uploader.image is not None
        while not uploader.done:
            await asyncio.sleep(world.chance.uniform(0.5, 2))
            victim = world.chance.choice([*processes, world.controllers[await world.leader()]])
            if world.chance.random() < 0.5 and victim in processes:
                victim.pause()
                await asyncio.sleep(world.chance.uniform(0.5, 2.5))
                victim.resume()
            else:
                victim.crash()
                await asyncio.sleep(world.chance.uniform(0.1, 1))
                victim.start()
            require_all_found(uploader.image)
        image = uploader.image
        await wait_until(
            lambda: not list(image[STREAM_SET_OBJECTS]) and not list(image[COMPACTIONS]), timeout_s=300
        )
        require_all_found(image)

    world.simulation.run(story())
    outcomes = workers[0].outcomes + workers[1].outcomes
    assert outcomes["RESULT_DONE"] > 3
    assert outcomes["RESULT_STALE_PLAN"] == 0


def test_data_read_under_a_lease_outlives_its_destruction_and_the_leader() -> None:
    world = QuorumWorld(7, replace(EAGER, session_timeout_ms=2_000))
    uploader = Uploader()
    world.node("broker", uploader.run)
    claimed: list[int] = []

    async def collect(clients: Clients) -> None:
        while True:
            body = wire.ClaimObjects(limit=100, ttl_ms=60_000)
            result = await clients.session.submit(wire.Operation(claim_objects=body))
            claimed.extend(each.object_id for each in result.objects_granted.objects)
            await clients.runtime.clock.sleep(0.2)

    told: list[str] = []

    async def read(clients: Clients) -> None:
        client = ClusterClient(clients.runtime.network, clients.runtime.clock, ADDRESSES)
        await wait_until(lambda: uploader.image is not None and len(uploader.image[STREAM_SET_OBJECTS]) > 3)
        opened = await client.open_snapshot("a reader", 60_000, timeout_s=30)
        await clients.subscription.wait_for(opened.index)
        image = clients.subscription.image
        before = {row.object_id for row in image[OBJECTS] if row.state is ObjectState.COMMITTED}
        await wait_until(lambda: uploader.done, timeout_s=600)
        world.controllers[await world.leader()].crash()
        renewed = await client.renew_snapshot(opened.lease_id, 60_000, timeout_s=60)
        assert renewed.leased_until_ms > opened.leased_until_ms
        assert renewed.index == opened.index
        gone = {row.object_id for row in image[OBJECTS].find(OBJECTS_WAITING, ObjectState.DESTROYED)}
        assert before & gone, "some were compacted or trimmed"
        assert not before & set(claimed)
        told.append("kept")
        for _ in range(2):
            await client.close_snapshot(opened.lease_id, timeout_s=60)
        with pytest.raises(OperationError, match="ended; open another"):
            await client.renew_snapshot(opened.lease_id, 60_000, timeout_s=60)
        await wait_until(lambda: gone <= set(claimed), timeout_s=120)
        told.append("released")

    world.node("worker", Compactor().run, number=500, role=NodeRole.COMPACTOR)
    world.node("collector", collect, number=900, role=NodeRole.GC)
    reader = world.node("reader", read, number=901, role=NodeRole.GC)

    async def story() -> None:
        world.start()
        await wait_until(lambda: len(told) == 2 or not reader.running, timeout_s=900)

    world.simulation.run(story())
    if reader.failure is not None:
        raise reader.failure
    assert told == ["kept", "released"]
