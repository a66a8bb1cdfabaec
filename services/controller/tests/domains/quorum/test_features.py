"""Which feature levels may be set, and what is refused below the level that it needs."""

from __future__ import annotations

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.shared_rules import feature_levels as features
from ponor_controller.shared_rules.feature_levels import (
    check_updates,
    describe_features,
    require_level,
    require_quorum_level,
)
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.cluster import (
    LEVEL_BROKERS,
    LEVEL_COMPACTION,
    LEVEL_ONE_CONTROLLER,
    LEVEL_QUORUM,
    METADATA_LEVEL,
    level_of,
)
from ponor_rpc.errors import OperationError


def image_at(level: int) -> MetadataImage:
    """A cluster of which the metadata's level was set so; 0: never."""
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


@pytest.mark.parametrize("present", [0, LEVEL_ONE_CONTROLLER])
def test_below_the_quorums_level_changes_of_the_quorum_name_the_command_that_raises_it(present: int) -> None:
    with pytest.raises(
        OperationError, match=r"kafka-features\.sh upgrade --feature ponor\.metadata\.level=2"
    ) as refused:
        require_quorum_level(image_at(present), "adding a learner")
    assert refused.value.code == error_pb2.ERROR_CODE_INVALID_REQUEST
    assert f"the cluster is at {present}" in refused.value.message
    require_quorum_level(image_at(LEVEL_QUORUM), "adding a learner")


def test_what_several_brokers_need_waits_for_its_own_level() -> None:
    with pytest.raises(
        OperationError, match=r"moving partitions needs metadata\.level 3, the cluster is at 2"
    ):
        require_level(image_at(LEVEL_QUORUM), LEVEL_BROKERS, "moving partitions")
    require_level(image_at(LEVEL_BROKERS), LEVEL_BROKERS, "moving partitions")


def test_a_level_that_rises_is_one_record_and_one_that_is_in_force_none() -> None:
    image = image_at(LEVEL_ONE_CONTROLLER)
    (record,) = check_updates(image, [update(LEVEL_QUORUM)])
    assert (record.feature_level_set.name, record.feature_level_set.level) == (METADATA_LEVEL, LEVEL_QUORUM)
    batch = records_pb2.RecordBatch(index=2, term=1, cluster_time_ms=1, records=[record])
    image.apply_committed(batch.SerializeToString())
    assert level_of(image, METADATA_LEVEL) == LEVEL_QUORUM
    assert check_updates(image, [update(LEVEL_QUORUM)]) == []


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([], "give 1 to"),
        ([update(LEVEL_QUORUM)] * (features.UPDATES_MAX + 1), "give 1 to"),
        ([update(LEVEL_QUORUM), update(LEVEL_QUORUM)], "updated twice"),
        ([update(1, "metadata.colour")], "known are metadata.level"),
        ([update(LEVEL_COMPACTION + 1)], "upgrade it first"),
        ([update(0)], "this version runs levels 1 to 4"),
        ([update(LEVEL_ONE_CONTROLLER)], "never falls"),
        ([update(LEVEL_QUORUM), update(1, "metadata.colour")], "is not known"),
    ],
)
def test_updates_that_cannot_be_are_refused_as_a_whole(updates: list[wire.FeatureUpdate], words: str) -> None:
    with pytest.raises(OperationError, match=words):
        check_updates(image_at(LEVEL_QUORUM), updates)


def test_features_that_only_the_log_knows_are_described_too() -> None:
    image = image_at(LEVEL_QUORUM)
    newer = records_pb2.FeatureLevelSet(name="a.newer.one", level=3)
    batch = records_pb2.RecordBatch(
        index=2, term=1, cluster_time_ms=1, records=[records_pb2.Record(feature_level_set=newer)]
    )
    image.apply_committed(batch.SerializeToString())
    described = [
        (each.name, each.level, each.supported_min, each.supported_max) for each in describe_features(image)
    ]
    assert described == [("a.newer.one", 3, 0, 0), (METADATA_LEVEL, 2, 1, 4)]
