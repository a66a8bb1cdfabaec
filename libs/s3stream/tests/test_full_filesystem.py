"""The write-ahead log on a real, full file system, which the test mounts."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3stream.errors import AppendBackpressureError
from s3stream.settings import KIB, MIB

from libs.s3stream.tests.storage_node import StorageNode, append_all, payloads_of, read_all, small_settings

FILE_SYSTEM_BYTES = 24 * MIB


@pytest.fixture
def small_wal(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 24 MiB as `wal` in a new directory; needs the right to mount."""
    wal = tmp_path / "wal"
    wal.mkdir()
    options = f"size={FILE_SYSTEM_BYTES}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(wal)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not permitted here ({mounted.stderr.decode().strip()})")
    yield tmp_path
    # Lazy unmount: after a failed test, files are still open there, and its own error must be the
    # one reported.
    subprocess.run(["umount", "--lazy", str(wal)], check=True)


def fill(path: Path) -> None:
    """Fill the remaining space."""
    with pytest.raises(OSError, match="No space left"), path.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4 * KIB))


async def acknowledged_or_waiting(node: StorageNode, durable: asyncio.Future[None]) -> bool:
    """Return whether an append was acknowledged; False: it waits for space."""
    while not durable.done() and not node.wal.waits_for_space:
        await asyncio.sleep(0.001)
    return durable.done()


async def test_appends_wait_for_space_and_nothing_is_lost(small_wal: Path) -> None:
    node = await StorageNode.create(
        small_wal, small_settings(log_cache_bytes_max=48 * MIB, wal_bytes_max=64 * MIB)
    )
    await node.start()
    (stream,) = await node.open_new(1)
    await append_all(stream, [b"before" * 100])
    ballast = small_wal / "wal" / "ballast"
    fill(ballast)
    node.store.open_gate.clear()  # prevents trims meanwhile
    payloads: list[bytes] = []
    pending: list[asyncio.Future[None]] = []
    acknowledged = 0
    with pytest.raises(AppendBackpressureError):
        while True:
            payload = b"%06d" % len(payloads) * 10_000
            pending.append(stream.append(payload, count=1, max_timestamp=-1))
            payloads.append(payload)
            # Sequentially while appends are acknowledged; without waiting from the first one that
            # waits for space.
            if acknowledged == len(pending) - 1:
                acknowledged += await acknowledged_or_waiting(node, pending[-1])
    assert 0 < acknowledged < len(pending), (
        "appends that fit into the current segment are acknowledged, the others wait"
    )
    await asyncio.sleep(0.6)
    assert sum(future.done() for future in pending) == acknowledged
    assert not node.failed.is_set(), "a full disk is not a failure of the log"
    ballast.unlink()
    node.store.open_gate.set()
    await asyncio.gather(*pending)
    assert payloads_of(await read_all(stream)) == [b"before" * 100, *payloads]
    await node.restart()
    (stream,) = await node.open([stream.stream_id])
    assert payloads_of(await read_all(stream)) == [b"before" * 100, *payloads]
    await node.close()
    assert node.failures == []


async def test_a_node_that_crashes_on_a_full_disk_starts_when_there_is_space(small_wal: Path) -> None:
    node = await StorageNode.create(small_wal, small_settings(wal_bytes_max=64 * MIB))
    await node.start()
    (stream,) = await node.open_new(1)
    node.store.open_gate.clear()
    fill(small_wal / "wal" / "ballast")
    acknowledged: list[bytes] = []
    while True:
        payload = b"%06d" % len(acknowledged) * 10_000
        durable = stream.append(payload, count=1, max_timestamp=-1)
        if not await acknowledged_or_waiting(node, durable):
            break
        acknowledged.append(payload)
    await node.crash()
    node.store.open_gate.set()
    (small_wal / "wal" / "ballast").unlink()
    await node.start()
    (stream,) = await node.open([stream.stream_id])
    assert payloads_of(await read_all(stream))[: len(acknowledged)] == acknowledged
    await node.close()
