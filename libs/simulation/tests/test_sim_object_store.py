"""The simulated object store: the conformance suite of stores, and its faults."""

from __future__ import annotations

import asyncio

import pytest
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from ponor_runtime.runtime import Runtime
from ponor_simulation.multipart_store import SimMultipartStore
from ponor_simulation.simulation import Simulation

from libs.s3stream.tests import multipart_conformance
from libs.s3stream.tests import object_store_conformance as conformance


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: conformance.Check) -> None:
    simulation = Simulation(1)

    async def run() -> None:
        await check(simulation.object_store(), "prefix")

    simulation.run(run())


@pytest.mark.parametrize("part_size_bytes_min", [1, 4_096])
@pytest.mark.parametrize("check", multipart_conformance.CHECKS, ids=lambda check: check.__name__)
def test_conformance_of_uploads_in_parts(
    check: multipart_conformance.Check, part_size_bytes_min: int
) -> None:
    simulation = Simulation(1)
    store = simulation.object_store()
    parts = SimMultipartStore(store, part_size_bytes_min=part_size_bytes_min)

    async def run() -> None:
        await check(multipart_conformance.Rig(store, parts), "prefix")

    simulation.run(run())


def test_parts_that_are_too_small_are_refused_when_the_object_is_completed() -> None:
    simulation = Simulation(1)
    store = simulation.object_store()
    parts = SimMultipartStore(store, part_size_bytes_min=10)

    async def run() -> None:
        upload = await parts.create_multipart("a")
        taken = [await parts.upload_part(upload, number, [b"x" * 9]) for number in (1, 2)]
        with pytest.raises(ObjectStoreRefusedError, match="fewer than 10 bytes"):
            await parts.complete_multipart(upload, taken)
        assert store.bucket.objects == {}
        assert [row.key async for row in parts.list_multiparts("")] == ["a"]

    simulation.run(run())


def test_a_failed_call_may_have_been_applied_or_not() -> None:
    simulation = Simulation(1)
    store = simulation.object_store()

    async def run() -> None:
        store.faults.before = 1.0
        with pytest.raises(ObjectStoreUnavailableError, match="503"):
            await store.put("a", [b"x"])
        assert store.bucket.objects == {}
        store.faults.before, store.faults.after = 0.0, 1.0
        with pytest.raises(ObjectStoreUnavailableError, match="timeout"):
            await store.put("a", [b"x"])
        assert store.bucket.objects == {"a": b"x"}
        store.faults.after = 0.0
        with pytest.raises(ObjectAlreadyExistsError):
            await store.put("a", [b"x"])
        assert (store.bucket.calls["put"], store.bucket.applied["put"]) == (3, 1)

    simulation.run(run())


def test_reads_may_be_short() -> None:
    simulation = Simulation(1)
    store = simulation.object_store()

    async def run() -> None:
        await store.put("a", [bytes(1000)])
        store.faults.short_read = 0.5
        lengths = [len(await store.get("a", 0, 1000)) for _ in range(40)]
        assert 10 < lengths.count(1000) < 30
        assert store.bucket.read_bytes == sum(lengths)

    simulation.run(run())


def test_a_call_in_flight_may_be_applied_after_its_process_crashed() -> None:
    landed = set()
    for seed in range(20):
        simulation = Simulation(seed)
        store = simulation.object_store()

        async def main(runtime: Runtime, store: object = store) -> None:
            await store.put("a", [b"x"])  # type: ignore[attr-defined]

        process = simulation.process("node", main)

        async def run(
            simulation: Simulation = simulation, process: object = process, store: object = store
        ) -> str:
            process.start()  # type: ignore[attr-defined]
            await asyncio.sleep(0.02)
            if process.running:  # type: ignore[attr-defined]
                process.crash()  # type: ignore[attr-defined]
            before = len(store.bucket.objects)  # type: ignore[attr-defined]
            await asyncio.sleep(10)
            return f"{before}->{len(store.bucket.objects)}"  # type: ignore[attr-defined]

        landed.add(simulation.run(run()))
    assert {"0->1", "1->1"} <= landed


def test_objects_may_change_between_the_pages_of_a_listing() -> None:
    simulation = Simulation(9)
    store = simulation.object_store()
    store.listing_page_keys = 2

    async def story() -> None:
        for number in range(5):
            await store.put(f"k/{number}", [b"x"])
        seen = []
        async for info in store.list("k/"):
            seen.append(info.key)
            if info.key == "k/1":
                await store.delete(["k/2"])
                await store.put("k/30", [b"x"])
        assert seen == ["k/0", "k/1", "k/3", "k/30", "k/4"]
        assert store.bucket.listing_pages == 2

    simulation.run(story())
