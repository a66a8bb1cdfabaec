"""One Ponor cluster of real processes, and one real Kafka, for all tools. Tests without their
programs are skipped with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.peers.artifacts import KAFKA, PeerMissingError, java
from tests.peers.kafka_peer import KafkaPeer

SETTINGS = {"num_partitions": 4, "offsets_topic_partitions": 4, "group_initial_rebalance_delay_ms": 0}


@pytest.fixture(scope="session")
def ponor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of Ponor."""
    directory = tmp_path_factory.mktemp("tools") / "ponor"
    # Outputs with node ids are compared with Kafka's, so the first broker is always 65536.
    with LocalCluster(directory, settings=SETTINGS, arguments=["--cluster-ordinal", "1"]) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Ponor with three brokers, which tests may kill."""
    settings = {**SETTINGS, "transaction_topic_partitions": 4}
    arguments = ["--brokers", "3", "--wal", "object"]
    directory = tmp_path_factory.mktemp("tools") / "brokers"
    with LocalCluster(directory, settings=settings, arguments=arguments) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_tools() -> None:
    """Skip without Kafka's tools."""
    try:
        java()
        assert KAFKA.class_path
    except PeerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka(kafka_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real Kafka."""
    with KafkaPeer(tmp_path_factory.mktemp("tools") / "kafka", heap="512m") as peer:
        yield peer.bootstrap
