"""A client that creates the topic of a run, and then creates, fills and deletes other topics to make
garbage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ponor_kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ponor_kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ponor_kafka.record_builder import build_batch
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.cluster.sim_cluster import KAFKA_ADDRESS
from ponor_cluster_simulation.workload.kafka_client import KafkaClient

REQUEST_TIMEOUT_S = 10.0
CONTROLLER_TIMEOUT_MS = 3_000
FILLING_BYTES = 9_000
RETRIABLE = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE})
"""The cluster was too slow, or no broker can lead the partitions now."""


class Admin:
    """The admin client. Its process never crashes."""

    def __init__(
        self,
        topic: str,
        partitions: int,
        *,
        bootstrap: Sequence[str] = (KAFKA_ADDRESS,),
        passing_configs: Mapping[str, str] | None = None,
    ) -> None:
        self._topic = topic
        self._passing_configs = dict(passing_configs or {})
        self._partitions = partitions
        self._bootstrap = tuple(bootstrap)
        self._made = 0
        self.stop = False

    @property
    def is_finished(self) -> bool:
        """Whether the client was stopped after it created the topic."""
        return self.stop and self._made > 0

    async def run(self, runtime: Runtime) -> None:
        """Create and delete topics until stopped, over any number of connections."""
        while not self.is_finished:
            try:
                address = self._bootstrap[runtime.randomness.below(len(self._bootstrap))]
                client = await KafkaClient.connect(runtime, address, "admin")
            except ConnectionClosedError:
                await runtime.clock.sleep(0.1)
                continue
            try:
                await self._converse(runtime, client)
            except ConnectionClosedError:
                pass
            finally:
                await client.close()

    async def _converse(self, runtime: Runtime, client: KafkaClient) -> None:
        while not self.is_finished:
            if self._made == 0:
                await self._create(client, self._topic, self._partitions)
                self._made = 1
                continue
            name = f"passing-{self._made}"
            await self._create(client, name, 2, self._passing_configs)
            for _ in range(runtime.randomness.below(6)):
                await self._fill(client, name, runtime.clock.wall_ms())
                await runtime.clock.sleep(runtime.randomness.uniform(0.05, 0.5))
            await self._delete(client, name)
            self._made += 1

    async def _create(
        self, client: KafkaClient, name: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(key, value) for key, value in (configs or {}).items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=CONTROLLER_TIMEOUT_MS)
        while True:
            response = await client.ask(request, 5, CreateTopicsResponse, timeout_s=REQUEST_TIMEOUT_S)
            code = response.topics[0].error_code
            if code in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
                return
            assert code in RETRIABLE, ErrorCode(code)

    async def _fill(self, client: KafkaClient, name: str, now_ms: int) -> None:
        """Send data that becomes garbage. It does not matter whether the broker accepts it."""
        batch = memoryview(bytes(build_batch([(now_ms, None, bytes(FILLING_BYTES))])))
        topic = TopicProduceData(name, partition_data=[PartitionProduceData(0, batch)])
        request = ProduceRequest(acks=1, timeout_ms=CONTROLLER_TIMEOUT_MS, topic_data=[topic])
        await client.ask(request, 7, ProduceResponse, timeout_s=REQUEST_TIMEOUT_S)

    async def _delete(self, client: KafkaClient, name: str) -> None:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=CONTROLLER_TIMEOUT_MS)
        while True:
            response = await client.ask(request, 5, DeleteTopicsResponse, timeout_s=REQUEST_TIMEOUT_S)
            code = response.responses[0].error_code
            if code in {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
                return
            assert code in RETRIABLE, ErrorCode(code)
