"""The simulated disk: the conformance suite of disks, and power loss."""

from __future__ import annotations

import errno
from pathlib import PurePath

import pytest
from ponor_runtime.disk import SECTOR_BYTES
from ponor_simulation.disk import DiskFault, SimDisk
from ponor_simulation.simulation import Simulation

from libs.runtime.tests import disk_conformance as conformance

ROOT = PurePath("/data")


async def prepared(disk: SimDisk) -> SimDisk:
    await disk.make_directories(ROOT)
    return disk


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scenario", conformance.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_conformance(scenario: conformance.Scenario, seed: int) -> None:
    simulation = Simulation(seed)

    async def run() -> None:
        await scenario(await prepared(simulation.disk("disk")), ROOT)

    simulation.run(run())


def test_power_loss_keeps_synced_bytes_and_any_of_the_others_by_sector() -> None:
    outcomes = set()
    for seed in range(40):
        simulation = Simulation(seed)

        async def run(simulation: Simulation = simulation) -> bytes:
            disk = await prepared(simulation.disk("disk"))
            file = await disk.open(ROOT / "f", create=True)
            await file.write_sync(0, [b"S" * 4 * SECTOR_BYTES])
            await disk.sync_directory(ROOT)
            await file.write(SECTOR_BYTES, [b"u" * 2 * SECTOR_BYTES])
            disk.crash(power_loss=True)
            file = await disk.open(ROOT / "f")
            return await file.read(0, 1 << 20)

        data = simulation.run(run())
        sectors = [data[at : at + SECTOR_BYTES] for at in range(0, len(data), SECTOR_BYTES)]
        assert [set(sector) for sector in (sectors[0], sectors[3])] == [{ord("S")}] * 2
        assert all(sector in (b"S" * SECTOR_BYTES, b"u" * SECTOR_BYTES) for sector in sectors)
        outcomes.add("".join(chr(sector[0]) for sector in sectors))
    assert outcomes == {"SSSS", "SuSS", "SSuS", "SuuS"}


def test_a_process_crash_keeps_what_was_written_but_not_the_lock() -> None:
    simulation = Simulation(1)

    async def run() -> None:
        disk = await prepared(simulation.disk("disk"))
        disk.lock(ROOT)
        file = await disk.open(ROOT / "f", create=True)
        await file.write(0, [b"written, not synced"])
        disk.crash(power_loss=False)
        disk.lock(ROOT)
        file = await disk.open(ROOT / "f")
        assert await file.read(0, 100) == b"written, not synced"

    simulation.run(run())


def test_names_may_be_lost_until_their_directory_is_synced() -> None:
    seen = set()
    for seed in range(40):
        simulation = Simulation(seed)

        async def run(simulation: Simulation = simulation) -> tuple[str, ...]:
            disk = await prepared(simulation.disk("disk"))
            await (await disk.open(ROOT / "safe", create=True)).close()
            await disk.sync_directory(ROOT)
            await (await disk.open(ROOT / "made", create=True)).close()
            await disk.rename(ROOT / "safe", ROOT / "renamed")
            disk.crash(power_loss=True)
            return tuple(await disk.list(ROOT))

        seen.add(simulation.run(run()))
    assert seen == {("safe",), ("made", "safe"), ("made", "renamed")}


def test_a_failed_sync_loses_the_pages_permanently() -> None:
    simulation = Simulation(1)

    async def run() -> bytes:
        disk = await prepared(simulation.disk("disk"))
        file = await disk.open(ROOT / "f", create=True)
        await disk.sync_directory(ROOT)
        disk.faults.append(DiskFault("sync"))
        with pytest.raises(OSError, match="f") as raised:
            await file.write_sync(0, [b"x" * SECTOR_BYTES])
        assert raised.value.errno == errno.EIO
        await file.sync()
        disk.crash(power_loss=True)
        return await (await disk.open(ROOT / "f")).read(0, 1 << 20)

    assert simulation.run(run()) == b""


def test_a_full_disk_raises_enospc() -> None:
    simulation = Simulation(1)

    async def run() -> None:
        disk = await prepared(simulation.disk("disk"))
        disk.capacity_bytes = 1000
        file = await disk.open(ROOT / "f", create=True)
        await file.write(0, [bytes(1000)])
        await file.write(0, [bytes(1000)])
        with pytest.raises(OSError, match="f") as raised:
            await file.write(1000, [b"x"])
        assert raised.value.errno == errno.ENOSPC

    simulation.run(run())


def test_a_listing_has_the_files_and_the_directories_of_one_directory() -> None:
    simulation = Simulation(1)

    async def run() -> None:
        disk = await prepared(simulation.disk("disk"))
        await disk.make_directories(ROOT / "b" / "deep")
        await disk.make_directories(ROOT / "b" / "deep")
        await (await disk.open(ROOT / "a", create=True)).close()
        assert await disk.list(PurePath("/")) == ["data"]
        assert await disk.list(ROOT) == ["a", "b"]
        assert await disk.list(ROOT / "b") == ["deep"]
        assert await disk.list(ROOT / "b" / "deep") == []

    simulation.run(run())
