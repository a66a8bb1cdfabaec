"""Resources after an interruption: every call to store, disk and controller fails or is cancelled
once, and nothing may stay open without an owner.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path, PurePath
from typing import Any, cast

import pytest
from ponor_runtime.disk import Disk
from ponor_runtime.identity import NodeId, ObjectId
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from s3stream.compaction.executor import Compaction
from s3stream.compaction.movement import Unthrottled
from s3stream.compaction.planning import plan_set_objects
from s3stream.compaction.sources import read_sources
from s3stream.file_wal import FileWal
from s3stream.object_wal.slot import LABEL_BYTES
from s3stream.object_wal.slot_keys import wal_prefix
from s3stream.objects.keys import object_key
from s3stream.takeover import recover_wal

from libs.s3stream.tests.cluster_model import NAMESPACE
from libs.s3stream.tests.compaction_rig import World
from libs.s3stream.tests.diskless_cluster import DisklessCluster
from libs.s3stream.tests.interruptions import CALLS_MAX, Interruption, Kind
from libs.s3stream.tests.storage_node import IDENTITY, small_settings
from libs.s3stream.tests.test_compaction_execution import ALL, LIMITS, three_objects

OLD, NEW = NodeId(1), NodeId(2)
KINDS = pytest.mark.parametrize("kind", Kind)


def no_task_is_left() -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}


@KINDS
async def test_an_interrupted_compaction_leaves_no_upload_and_no_memory(kind: Kind) -> None:
    for at in range(CALLS_MAX):
        interruption = Interruption(kind, at)
        world = World()
        sources = await three_objects(world)
        plan = plan_set_objects(await read_sources(world.store, sources), ALL, LIMITS)
        compaction = Compaction(
            store=interruption.wrap(world.store),
            multipart=interruption.wrap(world.parts),
            prepare=interruption.wrap(world).prepare,
            budget=world.budget,
            throttle=Unthrottled(),
        )
        was_interrupted = await interruption.run(partial(compaction.run, plan))
        assert world.budget.held_bytes == 0, interruption.interrupted
        no_task_is_left()
        # The creation of an upload was not answered, so its id is unknown; the collector finds it by listing.
        is_unknown = interruption.interrupted == "create_multipart" and kind in (
            Kind.APPLIED,
            Kind.CANCELLED_LATE,
        )
        assert len(world.parts.uploads) == is_unknown, (at, interruption.interrupted)
        given = {
            object_key("ns", ObjectId(each.first_object_id + number))
            for each in world.prepared
            for number in range(each.count)
        }
        assert set(world.store.objects) <= given | {source.key for source in sources}
        if not was_interrupted:
            return
    pytest.fail("no end")


@KINDS
async def test_an_interrupted_takeover_is_repeated_and_leaves_nothing(kind: Kind) -> None:
    for at in range(CALLS_MAX):
        cluster = DisklessCluster()
        old, new = await cluster.broker(OLD), await cluster.broker(NEW)
        streams = await old.open(*await old.client.create_streams([{}, {}]))
        for number in range(3):
            await asyncio.gather(
                *[old.append(stream, b"%d/%d" % (stream.stream_id, number)) for stream in streams]
            )
        (wal,) = cluster.fail_over(OLD, new)
        await old.stop()
        interruption = Interruption(kind, at)
        store, ports = interruption.wrap(cluster.store), interruption.wrap(new.node)
        attempt = partial(
            recover_wal,
            runtime=cluster.runtime,
            store=store,
            wal=wal,
            manager=ports,
            streams=ports,
            objects=ports,
            settings=small_settings(upload_retry_ms_max=1),
        )
        was_interrupted = await interruption.run(attempt)
        was_closed = wal.name in cluster.model.closed_wals
        if not was_closed:
            await cluster.recover(wal, new)
        await new.stop()
        await cluster.check()
        no_task_is_left()
        slots = [key for key in cluster.store.objects if key.startswith(wal_prefix(wal.name))]
        sizes = [len(cluster.store.objects[key]) for key in slots]
        # The collector deletes the slots of a closed log whose deletion was interrupted.
        assert (was_closed and was_interrupted) or sizes == [LABEL_BYTES] * max(len(slots), 1), "fences alone"
        known = {object_key(NAMESPACE, each) for each in (*cluster.model.committed, *cluster.model.prepared)}
        assert set(cluster.store.objects) - set(slots) <= known
        if not was_interrupted:
            return
    pytest.fail("no end")


class CountedDisk:
    """A disk that records its open files."""

    def __init__(self, disk: SystemDisk, interruption: Interruption) -> None:
        self._disk = disk
        self._interruption = interruption
        self.open_files: set[str] = set()

    async def open(self, path: PurePath, **named: bool) -> object:
        file = await self._interruption.call("open", lambda: self._disk.open(path, **named))
        counted = _CountedFile(file, self, str(path), self._interruption)
        self.open_files.add(str(path))
        return counted

    def __getattr__(self, name: str) -> object:
        return getattr(self._interruption.wrap(self._disk), name)


class _CountedFile:
    def __init__(self, file: Any, disk: CountedDisk, path: str, interruption: Interruption) -> None:
        self._file = file
        self._disk = disk
        self._path = path
        self._interruption = interruption

    async def close(self) -> None:
        self._disk.open_files.discard(self._path)
        await self._file.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self._interruption.wrap(self._file), name)


async def open_log(disk: object, directory: Path, opened: list[FileWal]) -> None:
    log = await FileWal.open(
        cast(Disk, disk), directory, identity=IDENTITY, settings=small_settings(), telemetry=Telemetry()
    )
    opened.append(log)


@KINDS
@pytest.mark.parametrize("is_new", [True, False])
async def test_an_interrupted_open_of_a_log_leaves_no_file_and_no_lock(
    tmp_path: Path, kind: Kind, *, is_new: bool
) -> None:
    disk = SystemDisk()
    settings = small_settings()
    try:
        for at in range(CALLS_MAX):
            directory = tmp_path / str(at)
            if not is_new:
                log = await FileWal.open(
                    disk, directory, identity=IDENTITY, settings=settings, telemetry=Telemetry()
                )
                await log.close()
            interruption = Interruption(kind, at, error=lambda: OSError(5, "input/output error"))
            counted = CountedDisk(disk, interruption)
            opened: list[FileWal] = []

            was_interrupted = await interruption.run(partial(open_log, counted, directory, opened))
            for log in opened:
                await log.close()
            assert counted.open_files == set(), (at, interruption.interrupted)
            no_task_is_left()
            again = await FileWal.open(
                disk, directory, identity=IDENTITY, settings=settings, telemetry=Telemetry()
            )
            await again.close()
            if not was_interrupted:
                return
        pytest.fail("no end")
    finally:
        disk.close()
