"""The directory store on a disk that loses unsynced data: conformance, and crashes at any time.

After a power loss an acknowledged object is complete, an unacknowledged one is complete or absent,
and an acknowledged deletion stays. Nothing of a torn upload remains after the next start.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import PurePosixPath

import pytest
from ponor_runtime.object_store import ObjectNotFoundError
from ponor_runtime.runtime import Runtime
from ponor_simulation.simulation import Simulation
from s3stream.stores.directory import DirectoryObjectStore

from libs.s3stream.tests import object_store_conformance as conformance

ROOT = PurePosixPath("/store")
SEEDS = int(os.environ.get("PONOR_SEEDS", "30"))
LIVES = 4
PUTTERS = 4


def content_of(key: str) -> bytes:
    """The contents of a key: 1 to 6 different sectors."""
    number = int(key.rpartition("/")[2])
    return f"{key}|".encode() * (30 + number * 37 % 250)


class Ledger:
    """Acknowledged puts and deletions, across the lives of the process."""

    def __init__(self) -> None:
        self.started: set[str] = set()
        self.stored: set[str] = set()
        self.deleting: set[str] = set()
        self.deleted: set[str] = set()
        self.next_number = 0

    def new_key(self) -> str:
        self.next_number += 1
        key = f"{self.next_number % 5:02x}/ns/{self.next_number}"
        self.started.add(key)
        return key

    def victims(self) -> list[str]:
        """Keys of started deletions, also of earlier lives, whose result is unknown."""
        return sorted(self.stored - self.deleted)[:2]


async def putter(store: DirectoryObjectStore, ledger: Ledger) -> None:
    while True:
        key = ledger.new_key()
        content = content_of(key)
        await store.put(key, [content[:40], content[40:]])
        ledger.stored.add(key)


async def deleter(runtime: Runtime, store: DirectoryObjectStore, ledger: Ledger) -> None:
    while True:
        await runtime.clock.sleep(runtime.randomness.uniform(0, 0.03))
        keys = ledger.victims()
        ledger.deleting.update(keys)
        await store.delete(keys)
        ledger.deleted.update(keys)


async def check(store: DirectoryObjectStore, ledger: Ledger, runtime: Runtime) -> None:
    listed = {info.key: info.size_bytes async for info in store.list("")}
    assert set(listed) <= ledger.started, "an object that was never put"
    for key, size in listed.items():
        assert size == len(content_of(key)), f"{key} is torn"
        assert await store.get(key, 0, size + 1) == content_of(key), f"{key} is torn"
    assert ledger.stored - ledger.deleting <= set(listed), "an acknowledged object is missing"
    assert not ledger.deleted & set(listed), "an acknowledged deletion was undone"
    for key in ledger.deleted:
        with pytest.raises(ObjectNotFoundError):
            await store.get(key, 0, 1)
    for number in await runtime.disk.list(ROOT / "uploads"):
        assert await runtime.disk.list(ROOT / "uploads" / number) == [], "a torn upload remains"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_and_nothing_is_torn(seed: int) -> None:
    simulation = Simulation(seed)
    ledger = Ledger()
    checked: list[int] = []

    async def program(runtime: Runtime) -> None:
        store = await DirectoryObjectStore.open(runtime.disk, ROOT)
        await check(store, ledger, runtime)
        checked.append(len(ledger.stored))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(PUTTERS):
                tasks.create_task(putter(store, ledger))
            tasks.create_task(deleter(runtime, store, ledger))

    process = simulation.process("node", program)

    async def scenario() -> None:
        for _ in range(LIVES):
            process.start()
            await asyncio.sleep(simulation.chance.uniform(0.0, 0.4))
            assert process.failure is None, process.failure
            process.crash(power_loss=simulation.chance.random() < 0.8)
        process.start()
        await asyncio.sleep(1.0)
        assert process.failure is None, process.failure

    simulation.run(scenario())
    assert checked
    assert ledger.stored


@pytest.mark.parametrize("seed", range(10))
def test_a_deletion_begun_by_a_dead_process_is_durable_when_another_acknowledges_it(seed: int) -> None:
    simulation = Simulation(seed)

    async def scenario() -> None:
        disk = simulation.disk("disk")
        store = await DirectoryObjectStore.open(disk, ROOT)
        await store.put("00/ns/1", [b"garbage"])
        await disk.remove(ROOT / "objects/00/ns/1.object")  # and no further
        disk.crash(power_loss=False)
        store = await DirectoryObjectStore.open(disk, ROOT)
        await store.delete(["00/ns/1", "01/ns/2"])
        disk.crash(power_loss=True)
        store = await DirectoryObjectStore.open(disk, ROOT)
        with pytest.raises(ObjectNotFoundError):
            await store.get("00/ns/1", 0, 1)

    simulation.run(scenario())


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: conformance.Check) -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        store = await DirectoryObjectStore.open(simulation.disk("disk"), ROOT)
        await check(store, "p")
        await store.close()

    simulation.run(scenario())
