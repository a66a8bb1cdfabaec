"""Feature levels: which updates are possible, and how features are described."""

from __future__ import annotations

import pytest
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.domains.quorum import feature_levels as features
from ponor_controller.domains.quorum.feature_levels import (
    check_updates,
    describe_features,
)
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.cluster import (
    LATEST_LEVEL,
    METADATA_LEVEL,
    level_of,
)
from ponor_rpc.errors import OperationError


def image_at(level: int) -> MetadataImage:
    """An image with this finalized metadata.level; 0: none."""
    image = MetadataImage()
    formatted = records_pb2.ClusterFormatted(cluster_id="c", cluster_ordinal=1, namespace="c")
    records = [records_pb2.Record(cluster_formatted=formatted)]
    if level:
        set_level = records_pb2.FeatureLevelSet(name=METADATA_LEVEL, level=level)
        records.append(records_pb2.Record(feature_level_set=set_level))
    batch = records_pb2.RecordBatch(index=1, term=1, cluster_time_ms=1, records=records)
    image.apply_committed(batch.SerializeToString())
    return image


def update(level: int, name: str = METADATA_LEVEL) -> wire.FeatureUpdate:
    return wire.FeatureUpdate(name=name, level=level)


def test_a_rising_level_is_one_record_and_a_finalized_one_none() -> None:
    image = image_at(0)
    (record,) = check_updates(image, [update(LATEST_LEVEL)])
    assert (record.feature_level_set.name, record.feature_level_set.level) == (METADATA_LEVEL, LATEST_LEVEL)
    batch = records_pb2.RecordBatch(index=2, term=1, cluster_time_ms=1, records=[record])
    image.apply_committed(batch.SerializeToString())
    assert level_of(image, METADATA_LEVEL) == LATEST_LEVEL
    assert check_updates(image, [update(LATEST_LEVEL)]) == []


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([], "give 1 to"),
        ([update(LATEST_LEVEL)] * (features.UPDATES_MAX + 1), "give 1 to"),
        ([update(LATEST_LEVEL), update(LATEST_LEVEL)], "twice"),
        ([update(1, "metadata.colour")], "known features are metadata.level"),
        ([update(LATEST_LEVEL + 1)], "upgrade the controllers first"),
        ([update(0)], "this version supports levels 1 to 1"),
        ([update(LATEST_LEVEL), update(1, "metadata.colour")], "is unknown"),
    ],
)
def test_impossible_updates_are_refused_as_a_whole(updates: list[wire.FeatureUpdate], words: str) -> None:
    with pytest.raises(OperationError, match=words):
        check_updates(image_at(LATEST_LEVEL), updates)


def test_a_level_that_a_newer_leader_finalized_never_falls() -> None:
    with pytest.raises(OperationError, match="cannot be lowered"):
        check_updates(image_at(LATEST_LEVEL + 1), [update(LATEST_LEVEL)])


def test_finalized_features_of_newer_builds_are_described() -> None:
    image = image_at(LATEST_LEVEL)
    newer = records_pb2.FeatureLevelSet(name="a.newer.one", level=3)
    batch = records_pb2.RecordBatch(
        index=2, term=1, cluster_time_ms=1, records=[records_pb2.Record(feature_level_set=newer)]
    )
    image.apply_committed(batch.SerializeToString())
    described = [
        (each.name, each.level, each.supported_min, each.supported_max) for each in describe_features(image)
    ]
    assert described == [("a.newer.one", 3, 0, 0), (METADATA_LEVEL, 1, 1, 1)]
