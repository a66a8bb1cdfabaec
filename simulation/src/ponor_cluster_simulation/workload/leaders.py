"""The leaders that one client has learned, from Metadata of any broker and from hints in answers (KIP-951).

Every failure triggers a new Metadata request. Leaders with an epoch below the known one are ignored, as in
Kafka's clients, so that a broker with an old image cannot send a client back to a deposed leader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.workload.kafka_client import KafkaClient

METADATA_VERSION: Final = 12
ANSWER_S_MAX: Final = 2.0
RENEWAL_S_MIN: Final = 0.05
"""Minimum time between two Metadata requests."""
NOT_THERE_YET: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)
"""Errors for a topic that is being created, or for a partition without a leader."""


class LeaderHint(Protocol):
    """`CurrentLeader` of a Produce or Fetch answer; -1 if it is absent."""

    leader_id: int
    leader_epoch: int


class BrokerAddress(Protocol):
    """`NodeEndpoint` of an answer, or a broker in Metadata."""

    node_id: int
    host: str
    port: int


class Leaders:
    """What one client has learned about a topic.

    Attributes:
        addresses: node id to address, for every broker that an answer contained.
        topic_id: None before the first Metadata answer with the topic.
        hints: number of hints with a newer leader.
    """

    def __init__(self, name: str, topic: str, bootstrap: Sequence[str]) -> None:
        self._name = name
        self._topic = topic
        self._bootstrap = tuple(bootstrap)
        self._leaders: dict[int, tuple[int, int]] = {}
        """Partition to (leader epoch, node); node -1 if no leader is known."""
        self._is_doubtful = True
        self.addresses: dict[int, str] = {}
        self.topic_id: bytes | None = None
        self.hints = 0

    def leader_of(self, partition: int) -> int | None:
        """The leader's node; None if it is unknown or there is none."""
        _, node = self._leaders.get(partition, (-1, -1))
        return None if node < 0 else node

    def epoch_of(self, partition: int) -> int:
        """The newest known leader epoch; -1 before the first."""
        return self._leaders.get(partition, (-1, -1))[0]

    def doubt(self) -> None:
        """Request Metadata soon, after a failure."""
        self._is_doubtful = True

    def hint(self, partition: int, leader: LeaderHint | None, endpoints: Sequence[BrokerAddress]) -> None:
        """Record that a broker does not lead the partition, and its hint."""
        self._know(endpoints)
        is_newer = leader is not None and self._learn(partition, leader.leader_epoch, leader.leader_id)
        if is_newer:
            self.hints += 1
        else:
            self.doubt()

    def any_address(self, lot: int) -> str:
        """The address of a broker chosen at random."""
        known = list(dict.fromkeys((*self.addresses.values(), *self._bootstrap)))
        return known[lot % len(known)]

    async def renew(self, runtime: Runtime, is_over: Callable[[], bool]) -> None:
        """Request Metadata after every `doubt`, until `is_over`."""
        while not is_over():
            if self._is_doubtful:
                self._is_doubtful = False
                try:
                    await self.ask(runtime)
                except ConnectionClosedError:
                    self._is_doubtful = True
            await runtime.clock.sleep(runtime.randomness.uniform(RENEWAL_S_MIN, 2 * RENEWAL_S_MIN))

    async def ask(self, runtime: Runtime) -> None:
        """Request Metadata from a broker, once.

        Raises:
            ConnectionClosedError: it did not answer.
        """
        address = self.any_address(runtime.randomness.below(1 << 16))
        async with KafkaClient.connected(runtime, address, self._name) as client:
            topics = [MetadataRequestTopic(name=self._topic)]
            request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            answer = await client.ask(request, METADATA_VERSION, MetadataResponse, timeout_s=ANSWER_S_MAX)
        self._take(answer)

    def _take(self, answer: MetadataResponse) -> None:
        self._know(answer.brokers)
        (topic,) = answer.topics
        assert topic.error_code in NOT_THERE_YET, ErrorCode(topic.error_code)
        if topic.error_code != ErrorCode.NONE:
            self._is_doubtful = True
            return
        self.topic_id = topic.topic_id
        for row in topic.partitions:
            assert row.error_code in NOT_THERE_YET, ErrorCode(row.error_code)
            self._learn(row.partition_index, row.leader_epoch, row.leader_id)
            self._is_doubtful = self._is_doubtful or self.leader_of(row.partition_index) is None

    def _know(self, brokers: Sequence[BrokerAddress]) -> None:
        for broker in brokers:
            self.addresses[broker.node_id] = f"{broker.host}:{broker.port}"

    def _learn(self, partition: int, epoch: int, node: int) -> bool:
        """Record a leader. Return whether it is newer than the known one."""
        known_epoch, known_node = self._leaders.get(partition, (-1, -1))
        if epoch < known_epoch or (epoch, node) == (known_epoch, known_node):
            return False
        self._leaders[partition] = (epoch, node)
        return epoch > known_epoch
