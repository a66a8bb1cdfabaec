"""Two brokers of Apache Kafka, the first of which is also the controller, for example for moves of
a partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import follow, request_moves

from tests.peers.kafka_peer import KafkaPeer, new_cluster_id
from tests.ports import free_port

FIRST: Final = 1
SECOND: Final = 2
JOIN_S_MAX: Final = 60.0


class KafkaPair:
    """Both run."""

    def __init__(self, first: KafkaPeer) -> None:
        self.bootstrap = first.bootstrap

    def wait_joined(self) -> None:
        """Wait until both brokers are in the cluster."""
        deadline = time.monotonic() + JOIN_S_MAX
        with KafkaClient(self.bootstrap) as client:
            while len(client.metadata([]).brokers) < 2:
                assert time.monotonic() < deadline, "the second broker did not join"
                time.sleep(0.1)

    def create_topic(self, name: str, *, at: int) -> None:
        """Create a topic of one partition at one broker."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, num_partitions=1, replica_assignment=[[at]])])[name].result(30)

    def move(self, topic: str, partition: int, *, to: int) -> tuple[int, int]:
        """Move and wait; return the times of the request and of the end (CLOCK_MONOTONIC, ns)."""
        with KafkaClient(self.bootstrap) as client:
            began_ns = time.monotonic_ns()
            request_moves(client, topic, [partition], to)
            for _ in follow(client, topic, [partition]):
                pass
            return began_ns, time.monotonic_ns()


@contextmanager
def kafka_pair(directory: Path) -> Iterator[KafkaPair]:
    """Run both brokers.

    Raises:
        PeerMissingError: Java or Kafka's jars are missing.
    """
    cluster_id = new_cluster_id()
    port = free_port()
    with KafkaPeer(directory / "first", cluster_id=cluster_id) as first:
        settings = {
            "process.roles": "broker",
            "node.id": SECOND,
            "controller.quorum.voters": f"{FIRST}@127.0.0.1:{first.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        }
        with KafkaPeer(directory / "second", cluster_id=cluster_id, settings=settings, port=port):
            pair = KafkaPair(first)
            pair.wait_joined()
            yield pair
