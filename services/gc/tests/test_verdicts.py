"""Tests of verdicts: ownership of keys, and whether objects are dead."""

from __future__ import annotations

import pytest
from ponor_gc.verdicts import Verdict, judge_object, judge_upload
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_runtime.identity import ClusterOrdinal, ObjectId, compose_id
from ponor_runtime.object_store import ObjectInfo, OpenMultipart

from services.gc.tests.bucket_world import BucketWorld, key_of

OLD_MS, YOUNG_MS, BOUND_MS = 1_000, 3_000, 2_000


@pytest.fixture
def world() -> BucketWorld:
    return BucketWorld()


def about(world: BucketWorld, key: str, modified_at_ms: int | None = OLD_MS) -> Verdict:
    cluster = cluster_of(world.image)
    assert cluster is not None
    return judge_object(ObjectInfo(key, 4, modified_at_ms), world.image, cluster, BOUND_MS)


def about_upload(world: BucketWorld, key: str, begun_at_ms: int = OLD_MS) -> Verdict:
    cluster = cluster_of(world.image)
    assert cluster is not None
    return judge_upload(OpenMultipart(key, "id", begun_at_ms), world.image, cluster, BOUND_MS)


def test_row_in_any_state_keeps_the_object(world: BucketWorld) -> None:
    object_id = world.prepare()
    assert about(world, key_of(object_id)) is Verdict.KNOWN
    world.commit(object_id)
    assert about(world, key_of(object_id)) is Verdict.KNOWN
    world.destroy(object_id)
    assert about(world, key_of(object_id)) is Verdict.KNOWN
    world.remove(object_id)
    assert about(world, key_of(object_id)) is Verdict.DEAD


def test_unassigned_id_is_kept_at_any_age(world: BucketWorld) -> None:
    object_id = counters.next_value(world.image, counters.OBJECT)
    assert about(world, key_of(object_id)) is Verdict.FUTURE
    assert about(world, key_of(object_id + 1_000)) is Verdict.FUTURE
    assert world.gone() == object_id
    assert about(world, key_of(object_id)) is Verdict.DEAD
    assert about(world, key_of(object_id + 1)) is Verdict.FUTURE


def test_young_objects_and_unknown_ages_are_kept(world: BucketWorld) -> None:
    key = key_of(world.gone())
    assert about(world, key, YOUNG_MS) is Verdict.YOUNG
    assert about(world, key, BOUND_MS) is Verdict.YOUNG
    assert about(world, key, None) is Verdict.YOUNG
    assert about(world, key, BOUND_MS - 1) is Verdict.DEAD


def test_other_keys_are_not_ours(world: BucketWorld) -> None:
    object_id = world.gone()
    good = key_of(object_id)
    other_cluster = compose_id(ClusterOrdinal(2), 5)  # smaller than every id of ours
    wrong_hash = ("00" if good[:2] != "00" else "01") + good[2:]
    for key in (
        key_of(object_id, "cluster-33"),
        key_of(other_cluster),
        wrong_hash,
        f"{good[:2]}/wal/{NAMESPACE_OF_LOG}/7/0000000001/00000000000000000001",
        f"{good}.bak",
        f"{good[:2]}/cluster-3/0{object_id}",
        "notes.txt",
    ):
        assert about(world, key) is Verdict.STRANGE, key
        assert about_upload(world, key) is Verdict.OTHERS, key


NAMESPACE_OF_LOG = "cluster-3"


def test_upload_is_kept_while_its_object_is_prepared(world: BucketWorld) -> None:
    object_id = world.prepare(ttl_ms=1)  # the lease expires immediately, but the writer may still complete
    key = key_of(object_id)
    assert about_upload(world, key) is Verdict.KNOWN
    world.commit(object_id)
    assert about_upload(world, key) is Verdict.DEAD  # a second upload of a committed object
    row = world.image[OBJECTS].get(ObjectId(object_id))
    assert row is not None
    assert row.state is ObjectState.COMMITTED
    world.destroy(object_id)
    assert about_upload(world, key) is Verdict.DEAD
    world.remove(object_id)
    assert about_upload(world, key) is Verdict.DEAD
    assert about_upload(world, key, YOUNG_MS) is Verdict.YOUNG
    assert about_upload(world, key_of(object_id + 1)) is Verdict.FUTURE
