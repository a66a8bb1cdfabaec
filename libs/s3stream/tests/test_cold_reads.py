"""Requests of a cold reader of one small stream among many, before and after compaction.

The layout is that of 8 GB in a thousand partitions, with only a few of the streams.
`tests/acceptance/test_cold_reads_after_compaction.py` measures all of them with real processes.
"""

from __future__ import annotations

import pytest
from ponor_runtime.identity import StreamId
from ponor_runtime.telemetry import Telemetry
from s3stream.compaction.plan import PlanLimits
from s3stream.compaction.planning import plan_set_objects
from s3stream.compaction.sources import ObjectLocation, read_sources
from s3stream.objects.format import BLOCK_BYTES_MAX
from s3stream.objects.reader import read_index
from s3stream.ports import ObjectPiece
from s3stream.reader import ObjectStreamReader

from libs.s3stream.tests.compaction_rig import World, states
from libs.s3stream.tests.store_rig import InstantClock
from libs.s3stream.tests.test_read_ahead import Metadata

STREAMS = 4
UPLOADS = 119
"""Uploads of 64 MiB."""
UPLOADS_PER_TASK = 15
"""Uploads in one compaction of 1 GiB."""
RECORD_BYTES = 16 * 1024
RECORDS_PER_UPLOAD = 4
FETCH_BYTES = 1 << 20
READ = StreamId(2)
FEWER_MIN = 10


async def uploaded(world: World) -> list[ObjectLocation]:
    """Create uploads that each contain a little of every stream."""
    return [
        await world.put(
            [(stream, at * RECORDS_PER_UPLOAD, (at + 1) * RECORDS_PER_UPLOAD) for stream in range(STREAMS)],
            block_bytes_max=BLOCK_BYTES_MAX,
            payload_bytes=RECORD_BYTES,
        )
        for at in range(UPLOADS)
    ]


async def compacted(world: World, sources: list[ObjectLocation]) -> list[ObjectLocation]:
    """Compact task by task."""
    limits = PlanLimits(world.budget_bytes)
    outputs: list[ObjectLocation] = []
    for at in range(0, UPLOADS, UPLOADS_PER_TASK):
        some = await read_sources(world.store, sources[at : at + UPLOADS_PER_TASK])
        plan = plan_set_objects(some, states(dict.fromkeys(range(STREAMS), 0)), limits)
        outputs += await world.run(plan)
    return outputs


async def cold_read(world: World, objects: list[ObjectLocation], *, opens: bool) -> tuple[int, int]:
    """Return number and bytes of GETs. With `opens` False, indexes are cached, so that opening an
    object needs no GET.
    """
    metadata = Metadata()
    metadata.pieces[READ] = []
    for each in objects:
        entries = [
            entry
            for entry in await read_index(world.store, each.key, each.size_bytes)
            if entry.stream_id == READ
        ]
        metadata.pieces[READ].append(
            ObjectPiece(
                each.object_id,
                "ns",
                0,
                each.size_bytes,
                entries[0].start_offset,
                entries[-1].end_offset,
                STREAMS,
            )
        )
    reader = ObjectStreamReader(
        store=world.store,
        objects=metadata,
        clock=InstantClock(),
        telemetry=Telemetry(),
        block_cache_bytes_max=64 << 20,
    )
    world.store.calls.clear()
    offset, end_offset = 0, UPLOADS * RECORDS_PER_UPLOAD
    while offset < end_offset:
        for record in await reader.read(READ, offset, end_offset, FETCH_BYTES):
            assert record.base_offset == offset
            offset += 1
    await reader.close()
    ops = ("get", "get_tail") if opens else ("get",)
    lengths = [length for op, _, _, length in world.store.calls if op in ops]
    return len(lengths), sum(lengths)


@pytest.mark.parametrize("opens", [True, False])
async def test_compaction_reduces_cold_read_requests_to_a_tenth(opens: bool) -> None:
    world = World(part_size_bytes_min=5 << 20, budget_bytes=64 << 20)
    before = await uploaded(world)
    gets_before, _ = await cold_read(world, before, opens=opens)
    gets_after, bytes_after = await cold_read(world, await compacted(world, before), opens=opens)
    print(f"{gets_before} GETs before, {gets_after} after")
    assert gets_before == UPLOADS * (1 + opens), "one GET for each upload's blocks, and one to open it"
    assert gets_before >= FEWER_MIN * gets_after
    if not opens:
        data_bytes = UPLOADS * RECORDS_PER_UPLOAD * (RECORD_BYTES + 40)
        assert bytes_after <= 1.01 * data_bytes, "nothing is read twice or thrown away"
