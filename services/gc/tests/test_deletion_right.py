"""Tests that a collector only reports when its store contradicts its metadata."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from ponor_gc.deletion_right import DeletionRight
from ponor_metadata.client.store_marker import PREFIX, ClusterMarker, decode_marker, put_marker, read_marker
from ponor_runtime.identity import compose_id
from ponor_runtime.runtime import Runtime

from services.gc.tests.bucket_world import MARKER, NAMESPACE, ORDINAL, BucketWorld, key_of

FOREIGN = replace(MARKER, cluster_id="other-cluster")


def test_marker_round_trips_through_its_encoding() -> None:
    assert decode_marker(MARKER.encode(), MARKER.key) == MARKER


@pytest.mark.parametrize(("marker", "named"), [(FOREIGN, "other-cluster"), (None, "has no marker")])
def test_nothing_is_deleted_under_a_foreign_or_missing_marker(
    marker: ClusterMarker | None, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another cluster may use objects that this cluster's metadata considers dead: two releases with equal
    names once shared a namespace.
    """
    world = BucketWorld(marker=marker)

    async def story(runtime: Runtime) -> None:
        ids = [world.gone() for _ in range(1_000)]
        key = await world.put(key_of(ids[4]), b"live data of the other cluster")
        await world.pass_hours(3)
        report = await world.rounds(runtime).go()
        assert key in world.keys, "nothing is deleted without the own marker"
        assert report.is_dry_run
        assert named in report.refusal

    with caplog.at_level(logging.ERROR):
        world.play(story)
    assert NAMESPACE in caplog.text


def test_an_object_beyond_the_counter_withdraws_the_right(caplog: pytest.LogCaptureFixture) -> None:
    """The controllers' log is an older copy, and the store contains ids that it has not assigned yet."""
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        dead = await world.put(key_of(world.gone()))
        await world.put(key_of(compose_id(ORDINAL, 1 << 40)))
        await world.pass_hours(3)
        rounds = world.rounds(runtime)
        report = await rounds.go()
        assert report.is_dry_run
        assert "another cluster writes to this store" in report.refusal
        again = await rounds.go()
        assert again.is_dry_run
        assert again.deleted == 0
        assert dead in world.keys or report.deleted, (
            "prefixes before the contradiction may have been reconciled"
        )
        assert max(value for _, value in runtime.telemetry.gauges("ponor_gc_report_only")) == 1

    with caplog.at_level(logging.ERROR):
        world.play(story)
    assert "nothing is deleted" in caplog.text


def test_id_assigned_during_the_listing_is_no_contradiction() -> None:
    world = BucketWorld()

    async def story(runtime: Runtime) -> None:
        orphan = await world.put(key_of(world.gone()))
        await world.pass_hours(3)
        rounds = world.rounds(runtime)
        world.store.bucket.objects[key_of(world.prepare())] = world.store.bucket.objects[orphan]
        report = await rounds.go()
        assert not report.is_dry_run
        assert orphan not in world.keys

    world.play(story)


def test_right_returns_with_the_marker() -> None:
    world = BucketWorld(marker=None)

    async def story(runtime: Runtime) -> None:
        right = DeletionRight(world.store, runtime.clock, runtime.telemetry)
        assert not await right.may_delete(MARKER)
        assert await put_marker(world.store, MARKER) == MARKER
        assert await right.may_delete(MARKER)
        assert await put_marker(world.store, FOREIGN) == MARKER, "the first marker stays"
        assert await read_marker(world.store, f"{PREFIX}none/marker") is None

    world.play(story)
