"""Scenarios of a broker's storage: uploads of many streams, recovery of a long write-ahead log."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from ponor_broker.__main__ import GC_THRESHOLDS
from s3stream.settings import KIB, MIB
from s3stream.stream import Stream

from libs.s3stream.tests.storage_node import StorageNode, small_settings
from tests.benchmarks.turns.scenario import scenario
from tests.benchmarks.turns.turn_recorder import TurnRecorder

STREAMS: Final = 4_096
"""The default trigger of a seal. The commit in the same loop is the test's model of a controller."""
WAL_RECORDS: Final = 200_000


@asynccontextmanager
async def _node() -> AsyncIterator[StorageNode]:
    gc.set_threshold(*GC_THRESHOLDS)
    with tempfile.TemporaryDirectory(prefix="ponor-bench-") as directory:
        settings = small_settings(
            log_cache_bytes_max=2_048 * MIB,
            upload_size_bytes_max=1_024 * MIB,
            append_waiting_bytes_max=256 * MIB,
            wal_bytes_max=4_096 * MIB,
            block_streams_max=16_384,
        )
        node = await StorageNode.create(Path(directory), settings)
        await node.start()
        yield node
        await node.close()


async def _open(node: StorageNode, count: int) -> list[Stream]:
    return await node.open_new(count)


async def _append(streams: Sequence[Stream], records: int, size_bytes: int) -> None:
    payload = bytes(size_bytes)
    for first in range(0, records, 1_000):
        await asyncio.gather(
            *(
                streams[number % len(streams)].append(payload, count=1, max_timestamp=-1)
                for number in range(first, min(first + 1_000, records))
            )
        )


@scenario("upload-streams", f"upload of {STREAMS:,} streams")
async def upload_streams(recorder: TurnRecorder) -> None:
    """Seal, plan, write, commit."""
    async with _node() as node:
        streams = await _open(node, STREAMS)
        await _append(streams, 2 * STREAMS, 100)
        recorder.start_recording()
        await node.client.force_upload()
        recorder.stop_recording()


@scenario("wal-recovery", f"start after a crash with {WAL_RECORDS:,} records in the write-ahead log")
async def wal_recovery(recorder: TurnRecorder) -> None:
    """The number of records matters, not their bytes."""
    async with _node() as node:
        await _append(await _open(node, 1_000), WAL_RECORDS, KIB)
        await node.crash()
        recorder.start_recording()
        await node.start()
        recorder.stop_recording()
