"""Tests of reconciliation: dead objects are deleted, all others are kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from ponor_gc import reconciliation
from ponor_gc.settings import GcSettings
from ponor_gc.verdicts import Verdict
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns import counters
from ponor_runtime.object_store import ObjectStoreUnavailableError
from ponor_runtime.runtime import Runtime

from services.gc.tests.bucket_world import HOUR_MS, SETTINGS, BucketWorld, StaleListings, key_of


def test_put_after_its_confirmed_deletion_is_deleted() -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        kept = world.prepare()
        await world.put(key_of(kept))
        world.commit(kept)
        waiting = world.prepare()
        await world.put(key_of(waiting))
        late = await world.put(key_of(world.gone()))
        await world.pass_hours(0.5)
        rounds = world.rounds(runtime)
        first = await rounds.go()
        assert (first.deleted, first.objects[Verdict.YOUNG]) == (0, 1)
        await world.pass_hours(1)
        second = await rounds.go()
        assert (second.deleted, second.deleted_bytes, second.objects[Verdict.KNOWN]) == (1, 4, 2)
        assert second.dead_examples == [late]
        assert world.keys == {key_of(kept), key_of(waiting)}
        collected = runtime.telemetry.counter("ponor_gc_collected_total", reason="orphan")
        assert collected.value == 1

    world.play(story)


def test_unknown_keys_are_kept_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        object_id = world.gone()
        mine = key_of(object_id)
        following = counters.next_value(world.image, counters.OBJECT)
        strange = f"{mine}.bak"
        kept = {
            await world.put(key_of(object_id, "cluster-4")),
            await world.put(key_of(object_id, "cluster-33")),
            await world.put(key_of(following)),
            await world.put(f"{mine[:2]}/wal/cluster-3/7/0000000001/00000000000000000001"),
            await world.put("README"),
            await world.put(strange),
        }
        await world.put(mine)
        await world.pass_hours(2)
        report = await world.rounds(runtime).go()
        assert report.deleted == 1
        assert report.objects[Verdict.FUTURE] == 1
        assert report.strange_examples == [strange]
        assert world.keys == kept
        assert dict(runtime.telemetry.gauges("ponor_gc_strange_keys")) == {(): 1}

    world.play(story)
    assert (
        f"not deleted, such as {key_of(counters.next_value(world.image, counters.OBJECT) - 1)}.bak"
        in caplog.text
    )


@pytest.mark.parametrize("why", ["dry run", "unconfirmed incarnation"])
def test_report_only_pass_deletes_nothing(why: str) -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        late = await world.put(key_of(world.gone()), b"x" * 10)
        await world.pass_hours(2)
        world.unconfirmed(why != "dry run")
        report = await world.rounds(runtime, replace(SETTINGS, reconcile_dry_run=why == "dry run")).go()
        assert report.is_dry_run
        assert (report.objects[Verdict.DEAD], report.object_bytes[Verdict.DEAD], report.deleted) == (1, 10, 0)
        assert "1 orphans (10 bytes) would be deleted" in str(report)
        assert report.as_dict()["objects"] == {"dead": 1}
        assert world.keys == {late}
        world.unconfirmed(False)
        assert (await world.rounds(runtime).go()).deleted == 1

    world.play(story)


def test_forced_recovery_during_a_pass_stops_the_deletions() -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        for _ in range(20):
            await world.put(key_of(world.gone()))
        await world.pass_hours(2)
        deletions: list[str] = []

        def recovery_comes(key: str) -> None:
            deletions.append(key)
            world.unconfirmed(True)

        world.store.bucket.on_delete = recovery_comes
        await world.rounds(runtime).go()
        prefixes = {key[:2] for key in deletions}
        assert len(prefixes) == 1  # at most one call, in the prefix at which it happened
        assert len(world.keys) == 20 - len(deletions)

    world.play(story)


def test_dead_objects_above_the_memory_bound_are_deleted_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciliation, "DEAD_AT_ONCE_MAX", 3)
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        ids = [world.gone() for _ in range(2_000)]
        prefix = key_of(ids[0])[:2]
        together = [key_of(each) for each in ids if key_of(each).startswith(f"{prefix}/")]
        assert len(together) > 3
        for key in together:
            await world.put(key)
        await world.pass_hours(2)
        report = await world.rounds(runtime, replace(SETTINGS, delete_keys_max=2)).go()
        assert report.deleted == report.objects[Verdict.DEAD] == len(together)
        assert world.keys == set()

    world.play(story)


def test_failed_pass_resumes_where_it_failed() -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        keys = [await world.put(key_of(world.gone())) for _ in range(50)]
        await world.pass_hours(2)
        deleted: list[str] = []

        def fail_after_ten(key: str) -> None:
            deleted.append(key)
            world.store.faults.down = len(deleted) == 10

        world.store.bucket.on_delete = fail_after_ten
        rounds = world.rounds(runtime)
        with pytest.raises(ObjectStoreUnavailableError):
            await rounds.go()
        world.store.faults.down = False
        listed_before = world.store.bucket.calls["list"]
        report = await rounds.go()
        assert world.store.bucket.calls["list"] - listed_before < 256
        assert not report.is_whole
        assert world.keys == set()
        assert sorted(deleted) == sorted(keys)
        assert (await rounds.go()).is_whole

    world.play(story)


def test_stale_listing_causes_only_an_extra_call() -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        stale = StaleListings(world.store, lambda: True)
        rounds = world.rounds(runtime, store=stale)
        await world.put(key_of(world.gone()))
        await world.pass_hours(2)
        assert (await rounds.go()).deleted == 1
        assert (await rounds.go()).deleted == 1  # listed again; deleting an absent object is no error
        live = world.prepare()
        await world.put(key_of(live))
        world.commit(live)
        await world.pass_hours(2)
        await rounds.go()
        assert world.keys == {key_of(live)}

    world.play(story)


def test_listing_keeps_its_rate() -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        world.store.bucket.objects |= {f"00/cluster-3/junk-{number}": b"" for number in range(2_000)}
        begun = runtime.clock.monotonic_ns()
        await world.rounds(runtime, replace(SETTINGS, reconcile_keys_per_s=100)).go()
        assert runtime.clock.monotonic_ns() - begun >= 2_000 / 100 * 1e9

    world.play(story)


def test_unformatted_cluster_reconciles_nothing() -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        world.image = MetadataImage()
        report = await world.rounds(runtime).go()
        assert (report.is_dry_run, report.objects.total()) == (True, 0)

    world.play(story)


def test_rounds_run_within_an_interval_and_sooner_after_a_failure() -> None:
    world = BucketWorld(seed=5)

    async def story(runtime: Runtime) -> None:
        settings = GcSettings(reconcile_age_ms_min=HOUR_MS, reconcile_interval_ms=24 * HOUR_MS)
        rounds = world.rounds(runtime, settings)
        late = await world.put(key_of(world.gone()))
        running = asyncio.create_task(rounds.run(runtime.clock, runtime.randomness))
        await world.pass_hours(25)
        assert late not in world.keys
        done = runtime.telemetry.counter("ponor_gc_reconciliations_total", outcome="done")
        failed = runtime.telemetry.counter("ponor_gc_reconciliations_total", outcome="failed")
        assert (done.value, failed.value) == (1, 0)
        world.store.faults.down = True
        while failed.value < 3:
            await world.pass_hours(0.2)
        world.store.faults.down = False
        await world.pass_hours(1)
        assert done.value == 2
        running.cancel()

    world.play(story)
