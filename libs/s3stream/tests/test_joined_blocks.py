"""Joining of small adjacent blocks by a compaction: savings, conditions, and the combined checksum."""

from __future__ import annotations

from itertools import pairwise

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from s3stream.compaction.plan import PlanLimits
from s3stream.compaction.planning import plan_set_objects
from s3stream.compaction.sources import read_sources
from s3stream.objects.format import BlockEntry
from s3stream.objects.joining import joined_blocks, joined_crc
from s3stream.objects.reader import read_index

from libs.s3stream.tests.compaction_rig import World, states

RECORD_BYTES = 50
"""Size of a record: header and payload."""


@given(st.binary(max_size=3000), st.binary(max_size=3000))
def test_a_checksum_of_two_pieces_follows_from_theirs(first: bytes, second: bytes) -> None:
    assert joined_crc(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_a_checksum_of_a_large_piece() -> None:
    second = bytes(range(256)) * 70_000
    assert joined_crc(crc32c(b"first"), crc32c(second), len(second)) == crc32c(b"first" + second)


async def compacted(*objects: tuple[int, int, int, int], block_bytes_max: int) -> list[BlockEntry]:
    """Compact objects (stream, start, end, epoch), whose blocks have two records each; check that
    the records are unchanged, and return the index.
    """
    world = World()
    streams = states({stream: 0 for stream, *_ in objects})
    sources = [
        await world.put([(stream, start, end)], block_bytes_max=2 * RECORD_BYTES, epoch=epoch)
        for stream, start, end, epoch in objects
    ]
    limits = PlanLimits(
        budget_bytes=1 << 20,
        split_size_bytes=1 << 20,
        part_size_bytes_min=1,
        part_size_bytes=1 << 16,
        block_bytes_max=block_bytes_max,
    )
    plan = plan_set_objects(await read_sources(world.store, sources), streams, limits)
    (output,) = await world.run(plan)
    assert await world.records([output], streams) == await world.records(sources, streams)
    return list(await read_index(world.store, output.key, output.size_bytes))


async def test_blocks_of_one_stream_from_many_uploads_become_one() -> None:
    entries = await compacted(*((1, at, at + 4, 0) for at in range(0, 40, 4)), block_bytes_max=1 << 16)
    assert [(entry.start_offset, entry.end_offset, entry.record_count) for entry in entries] == [(0, 40, 40)]
    assert entries[0].max_timestamp_ms == 39


async def test_a_joined_block_respects_the_size_limit() -> None:
    entries = await compacted((1, 0, 10, 0), (1, 10, 20, 0), block_bytes_max=7 * RECORD_BYTES)
    assert [entry.record_count for entry in entries] == [6, 6, 6, 2], "whole blocks of two"


async def test_blocks_of_other_streams_or_epochs_or_across_gaps_stay_separate() -> None:
    entries = await compacted(
        (1, 0, 4, 0), (1, 4, 8, 1), (1, 9, 12, 1), (2, 12, 14, 1), block_bytes_max=1 << 16
    )
    assert [(entry.stream_id, entry.epoch, entry.start_offset, entry.end_offset) for entry in entries] == [
        (1, 0, 0, 4),
        (1, 1, 4, 8),
        (1, 1, 9, 12),
        (2, 1, 12, 14),
    ]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(1, 20))
def test_no_two_adjacent_blocks_could_be_joined_further(sizes: list[int], block_bytes_max: int) -> None:
    entries = [BlockEntry(1, 0, number, number + 1, -1, 0, size, 1, 0) for number, size in enumerate(sizes)]  # type: ignore[arg-type]
    joined = list(joined_blocks(entries, block_bytes_max))
    assert sum(entry.size_bytes for entry in joined) == sum(sizes)
    assert all(entry.size_bytes <= block_bytes_max or entry.record_count == 1 for entry in joined)
    for a, b in pairwise(joined):
        assert b.position == a.position + a.size_bytes
        assert a.size_bytes + sizes[b.start_offset] > block_bytes_max
