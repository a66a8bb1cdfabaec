"""Requests of Kafka's tools about the controllers' quorum and feature levels."""

from __future__ import annotations

from collections.abc import Mapping

from ponor_kafka.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from ponor_kafka.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

from tests.oracle.narrator import Narrator
from tests.oracle.story import story

METADATA = "__cluster_metadata"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def quorum(topics: Mapping[str, list[int]]) -> DescribeQuorumRequest:
    """Partitions of topics, as if they had a quorum."""
    return DescribeQuorumRequest(
        [
            DescribeQuorumRequestTopicData(
                name, [DescribeQuorumRequestPartitionData(index) for index in partitions]
            )
            for name, partitions in topics.items()
        ]
    )


def update(
    name: str,
    level: int,
    upgrade_type: int = UPGRADE,
    *,
    validate_only: bool = False,
    downgrade: bool = False,
) -> UpdateFeaturesRequest:
    """One feature."""
    return UpdateFeaturesRequest(
        10_000, [FeatureUpdateKey(name, level, downgrade, upgrade_type)], validate_only
    )


@story("Voters and leader of the metadata quorum")
def describe_quorum(k: Narrator) -> None:
    for version in range(3):
        k.ask(quorum({METADATA: [0]}), version, "the log of metadata")


@story("Unknown quorums")
def describe_quorum_unknown(k: Narrator) -> None:
    k.ask(quorum({METADATA: [1]}), 2, "an unknown partition")
    k.ask(quorum({METADATA: [0, 1]}), 2, "the log and an unknown partition")
    k.ask(quorum({"quorum-missing": [0]}), 2, "an unknown topic")
    k.ask(quorum({METADATA: []}), 2, "no partition")
    k.ask(quorum({}), 2, "nothing")


@story("Unknown features and levels")
def update_features_unknown(k: Narrator) -> None:
    k.ask(update("feature.missing", 1), 0, "an unknown feature")
    for version in (1, 2):
        k.ask(update("feature.missing", 1), version, "an unknown feature")
    k.ask(update("feature.missing", 1, validate_only=True), 2, "the same, validate only")
    k.ask(update("feature.missing", 0, SAFE_DOWNGRADE), 2, "down to nothing")
    k.ask(update("feature.missing", 1, 7), 2, "an invalid update type")
    k.ask(update("feature.missing", -1), 2, "a negative level")
    k.ask(update("feature.missing", 0), 2, "up to nothing")
    k.ask(update("", 1), 2, "no name")


@story("Updates of no feature, or of one twice")
def update_features_count(k: Narrator) -> None:
    for version in (0, 1, 2):
        k.ask(UpdateFeaturesRequest(10_000, []), version, "nothing")
    twice = [FeatureUpdateKey("feature.missing", level) for level in (1, 2)]
    k.ask(UpdateFeaturesRequest(10_000, twice), 2, "one feature twice")
    two = [FeatureUpdateKey(name, 1) for name in ("feature.missing", "feature.missing.too")]
    k.ask(UpdateFeaturesRequest(10_000, two), 1, "two unknown features")
