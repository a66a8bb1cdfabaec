"""Listings contain the time of each object's put, by the store's clock."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePosixPath

from ponor_runtime.identity import ObjectId
from ponor_runtime.runtime import Runtime
from ponor_runtime.system_disk import SystemDisk
from ponor_simulation.chance import wall_ms_at
from ponor_simulation.simulation import Simulation
from s3stream.objects.keys import HASH_PREFIXES, key_prefixes, object_key
from s3stream.stores.directory import DirectoryObjectStore


async def test_a_directory_lists_the_times_of_its_files(tmp_path: Path) -> None:
    disk = SystemDisk()
    store = await DirectoryObjectStore.open(disk, tmp_path)
    await store.put("84/ns/1", [b"x"])
    (info,) = [info async for info in store.list("")]
    assert info.modified_at_ms == (tmp_path / "objects/84/ns/1.object").stat().st_mtime_ns // 1_000_000
    await store.close()
    disk.close()


def test_simulated_stores_list_simulated_times() -> None:
    simulation = Simulation(1)
    seen: list[tuple[int | None, int, int]] = []

    async def main(runtime: Runtime) -> None:
        directory = await DirectoryObjectStore.open(runtime.disk, PurePosixPath("/store"))
        for store in (directory, simulation.object_store()):
            await runtime.clock.sleep(100)
            before_ms = wall_ms_at(simulation.loop)
            await store.put("a", [b"x"])
            (info,) = [info async for info in store.list("")]
            seen.append((info.modified_at_ms, before_ms, wall_ms_at(simulation.loop)))

    async def run() -> None:
        process = simulation.process("node", main)
        process.start()
        while len(seen) < 2:
            await asyncio.sleep(1)

    simulation.run(run())
    for modified_at_ms, before_ms, after_ms in seen:
        assert modified_at_ms is not None
        assert before_ms <= modified_at_ms <= after_ms


def test_the_prefixes_of_a_namespace_cover_its_keys() -> None:
    prefixes = list(key_prefixes("cluster-1"))
    assert len(set(prefixes)) == HASH_PREFIXES == 256
    assert prefixes == sorted(prefixes)
    found = set()
    for number in range(3_000):
        key = object_key("cluster-1", ObjectId(number))
        (prefix,) = [prefix for prefix in prefixes if key.startswith(prefix)]
        found.add(prefix)
    assert found == set(prefixes)
