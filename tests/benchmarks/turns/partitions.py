"""Scenarios of a broker's partitions: many segments in one, many producers in many."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from ponor_broker.handlers.offsets import offset_lookup
from ponor_broker.partitions.handoff.opening import Opening, OpenRequest
from ponor_broker.partitions.handoff.partition_opener import PartitionOpener
from ponor_broker.partitions.identity import PartitionId
from ponor_broker.partitions.maintenance.maintenance import PartitionMaintenance
from ponor_broker.partitions.maintenance.maintenance_schedule import MaintenanceSchedule
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state.producer_entry import ProducerBatch
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_broker.partitions.topics.topics import Topics
from ponor_kafka.record_builder import build_batch
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.keys import KEYS, KeyRow
from ponor_runtime.system import SystemClock
from ponor_runtime.telemetry import Telemetry
from s3stream.settings import MIB

from libs.s3stream.tests.storage_node import StorageNode, small_settings
from services.broker.tests.partition_rig import PartitionRig
from tests.benchmarks.turns.scenario import scenario
from tests.benchmarks.turns.turn_recorder import TurnRecorder

SEGMENTS: Final = 10_000
PRODUCERS: Final = 10_000
PARTITIONS: Final = 360


# Segments


async def _many_segments(config: TopicConfig) -> tuple[PartitionRig, Partition]:
    """A partition with one batch per segment, on streams in memory."""
    rig = PartitionRig(config=config)
    partition = await rig.open()
    for number in range(SEGMENTS):
        partition.append_batch(bytearray(build_batch([(number, b"key", b"value")])))
        await asyncio.sleep(0)
        if number == 0:
            await rig.owned.add_time_streams([partition])
        if number % 10 == 0:
            partition.before_upload()
    assert len(partition.log.log_meta.segments) == SEGMENTS
    return rig, partition


@scenario("segments-open", f"open of a partition of {SEGMENTS:,} segments, then rolls and reads")
async def segments_open(recorder: TurnRecorder) -> None:
    """Open the partition, as the next leader does."""
    rig, _ = await _many_segments(TopicConfig(segment_bytes=1, retention_ms=-1))
    recorder.start_recording()
    partition = await rig.open()
    for offset in range(0, SEGMENTS, SEGMENTS // 100):
        partition.append_batch(bytearray(build_batch([(SEGMENTS + offset, b"key", b"value")])))
        await partition.read(offset, 1_000)
        await offset_lookup.first_at_or_after(partition, offset)
        await asyncio.sleep(0)
    await offset_lookup.largest(partition)
    partition.before_upload()
    await partition.delete_records(SEGMENTS // 2)
    await asyncio.sleep(0)
    await offset_lookup.largest(partition)
    recorder.stop_recording()


@scenario("segments-retention", f"retention of a partition of {SEGMENTS:,} segments, all of them too old")
async def segments_retention(recorder: TurnRecorder) -> None:
    """Maintenance after a long pause."""
    rig, partition = await _many_segments(TopicConfig(segment_bytes=1, retention_ms=1_000_000))
    schedule = MaintenanceSchedule(rig.clock)
    keeper = PartitionMaintenance(
        None,  # type: ignore[arg-type]  # every partition is writable
        rig.owned,
        schedule,
        rig.clock,
        Telemetry(),
        interval_ms=5_000,
        producer_expiration_ms=1_000_000,
    )
    partition._attend = schedule.touch
    schedule.touch(partition)
    rig.clock.now_ms += 10_000_000
    recorder.start_recording()
    while partition.log_start_offset < partition.high_watermark:
        await keeper.round()
    recorder.stop_recording()


# Producers


@asynccontextmanager
async def _many_producers() -> AsyncIterator[tuple[StorageNode, PartitionOpener, list[Partition]]]:
    """Partitions on a real log and a real store, each with many producers that were active since
    the last upload.
    """
    with tempfile.TemporaryDirectory(prefix="ponor-bench-") as directory:
        settings = small_settings(
            log_cache_bytes_max=2_048 * MIB,
            upload_size_bytes_max=1_024 * MIB,
            append_waiting_bytes_max=256 * MIB,
            wal_bytes_max=4_096 * MIB,
        )
        node = await StorageNode.create(Path(directory), settings)
        client = await node.start()
        image = MetadataImage()
        clock = SystemClock()

        async def put_keys(puts: Sequence[tuple[str, bytes]]) -> list[bytes]:
            for key, value in puts:
                image[KEYS].put(KeyRow(key, value))
            return [value for _, value in puts]

        opener = PartitionOpener(
            client,
            Topics(lambda: image),
            put_keys,
            clock,
            config=TopicConfig(),
            producers_max=PRODUCERS,
            attend=lambda _: None,
            refused=RefusedSequences(clock),
        )
        partitions = await _opened(opener, epoch=0)
        for partition in partitions:
            for producer_id in range(PRODUCERS):
                partition.producers.append(ProducerBatch(producer_id, 0, 0, 1), 0, 0, 0)
            partition.producers.confirm(0)
            partition.append_batch(bytearray(build_batch([(1, b"key", b"value")])))
        yield node, opener, partitions
        await node.close()


async def _opened(opener: PartitionOpener, *, epoch: int) -> list[Partition]:
    openings = [
        Opening(OpenRequest(PartitionId(bytes(16), "t", index), epoch, {})) for index in range(PARTITIONS)
    ]
    opened: list[Partition] = []
    assert not await opener.open(openings, lambda some: opened.extend(one for _, one in some))
    return opened


@scenario("producers-seal", f"upload of {PARTITIONS} partitions, {PRODUCERS:,} producers used in each")
async def producers_seal(recorder: TurnRecorder) -> None:
    """The hooks of one seal."""
    async with _many_producers() as (node, _, partitions):
        recorder.start_recording()
        await node.client.force_upload()
        recorder.stop_recording()
        assert all(partition.recovers_from is None for partition in partitions)


@scenario("producers-open", f"open of {PARTITIONS} partitions with {PRODUCERS:,} producers each")
async def producers_open(recorder: TurnRecorder) -> None:
    """Open the partitions at another broker."""
    async with _many_producers() as (node, opener, partitions):
        await node.client.force_upload()
        for partition in partitions:
            for stream in partition.streams:
                await stream.close()
        recorder.start_recording()
        again = await _opened(opener, epoch=1)
        recorder.stop_recording()
        assert all(len(partition.producers) == PRODUCERS for partition in again)
