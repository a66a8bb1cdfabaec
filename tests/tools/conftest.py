"""One Ponor cluster of real processes, and one real Kafka beside it, for all tools; what is missing is skipped with its reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.peers.artifacts import KAFKA, PeerMissingError, java
from tests.peers.kafka_peer import KafkaPeer

SETTINGS = {"num_partitions": 4, "offsets_topic_partitions": 4, "group_initial_rebalance_delay_ms": 0}


@pytest.fixture(scope="session")
def ponor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where Ponor is."""
    directory = tmp_path_factory.mktemp("tools") / "ponor"
    # Outputs that name nodes are compared with those of a Kafka: the first broker is always 65536.
    with LocalCluster(directory, settings=SETTINGS, arguments=["--cluster-ordinal", "1"]) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="session")
def kafka_tools() -> None:
    """Skips where Kafka's tools are not on this machine."""
    try:
        java()
        assert KAFKA.class_path
    except PeerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka(kafka_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a real Kafka is."""
    with KafkaPeer(tmp_path_factory.mktemp("tools") / "kafka", heap="512m") as peer:
        yield peer.bootstrap
