"""A client that moves partitions, cancels moves and lists them, as Kafka's tools do.

It checks only the answers. The ledger and the judgement check the moves themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ponor_kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.workload.kafka_client import KafkaClient

REQUEST_TIMEOUT_S: Final = 5.0
CONTROLLER_TIMEOUT_MS: Final = 3_000
REFUSALS: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Valid errors for a partition: brokers come and go, and the image of the requested broker may be old."""


class Mover:
    """The client of AlterPartitionReassignments and ListPartitionReassignments. Its process never crashes.

    Args:
        topics: topics to move, and their numbers of partitions.
        bootstrap: addresses of the brokers that receive the requests.
        nodes: brokers to move to.
        pause_s_max: maximum pause between two requests.

    Attributes:
        asked: number of requested moves; `accepted`: number of accepted ones.
    """

    def __init__(
        self,
        topics: Mapping[str, int],
        *,
        bootstrap: Sequence[str],
        nodes: Sequence[int],
        pause_s_max: float,
    ) -> None:
        self._topics = list(topics.items())
        self._bootstrap = tuple(bootstrap)
        self._nodes = tuple(nodes)
        self._pause_s_max = pause_s_max
        self.asked = 0
        self.accepted = 0
        self.stop = False
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Move partitions until stopped, each time through another broker."""
        while not self.stop:
            await runtime.clock.sleep(runtime.randomness.uniform(0.02, self._pause_s_max))
            address = self._bootstrap[runtime.randomness.below(len(self._bootstrap))]
            with suppress(ConnectionClosedError):
                async with KafkaClient.connected(runtime, address, "mover") as client:
                    await self._act(runtime, client)
        self.is_finished = True

    async def _act(self, runtime: Runtime, client: KafkaClient) -> None:
        below = runtime.randomness.below
        topic, partitions = self._topics[below(len(self._topics))]
        match below(8):
            case 0:
                await self._list(client)
            case 1 | 2:
                await self._alter(client, topic, below(partitions), None)
            case _:
                target = self._nodes[below(len(self._nodes))]
                await self._alter(client, topic, below(partitions), target)

    async def _alter(self, client: KafkaClient, name: str, partition: int, target: int | None) -> None:
        replicas = None if target is None else [target]
        topic = ReassignableTopic(name, [ReassignablePartition(partition, replicas)])
        request = AlterPartitionReassignmentsRequest(timeout_ms=CONTROLLER_TIMEOUT_MS, topics=[topic])
        response = await client.ask(
            request, 0, AlterPartitionReassignmentsResponse, timeout_s=REQUEST_TIMEOUT_S
        )
        assert response.error_code in REFUSALS, f"{ErrorCode(response.error_code)}: {response.error_message}"
        for answered in response.responses:
            for row in answered.partitions:
                assert row.error_code in REFUSALS, f"{ErrorCode(row.error_code)}: {row.error_message}"
                if target is not None:
                    self.asked += 1
                    self.accepted += row.error_code == ErrorCode.NONE

    async def _list(self, client: KafkaClient) -> None:
        request = ListPartitionReassignmentsRequest(timeout_ms=CONTROLLER_TIMEOUT_MS, topics=None)
        response = await client.ask(
            request, 0, ListPartitionReassignmentsResponse, timeout_s=REQUEST_TIMEOUT_S
        )
        assert response.error_code == ErrorCode.NONE, ErrorCode(response.error_code)
        for topic in response.topics:
            for row in topic.partitions:
                source, target = row.removing_replicas, row.adding_replicas
                assert len(source) == len(target) == 1, (
                    f"{topic.name}-{row.partition_index}: {source} to {target}"
                )
                assert sorted(row.replicas) == sorted((*source, *target))
