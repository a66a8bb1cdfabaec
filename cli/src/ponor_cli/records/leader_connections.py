"""Connections to the leaders of one topic's partitions: who leads is asked when it is not known, and again when it was wrong."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.metadata import MetadataResponse, MetadataResponseTopic
from ponor_runtime.host_port import join_host_port

from ponor_cli.clients.kafka_client import KafkaClient, error_of
from ponor_cli.errors import CommandError, absent_topic

RETRY_S: Final = 0.2
RETRIES_MAX: Final = 100
"""20 seconds: a leader that restarts is back by then."""
_MOVED: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)


class LeaderConnections:
    """One topic as a client sees it.

    Raises (all calls): `CommandError` when a broker cannot be reached, or the topic is not there.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic: Final = topic
        self._bootstrap = KafkaClient(bootstrap)
        self._connections: dict[tuple[str, int], KafkaClient] = {}
        self._leaders: dict[int, tuple[str, int]] = {}
        self._refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in (self._bootstrap, *self._connections.values()):
            connection.close()

    @property
    def bootstrap(self) -> KafkaClient:
        """The broker that was named: for what any broker answers."""
        return self._bootstrap

    @property
    def partitions(self) -> list[int]:
        """The topic's partitions, in order."""
        return sorted(self._leaders)

    def leader_of(self, partition: int) -> KafkaClient:
        """The connection on which a partition is written and read."""
        address = self._leaders.get(partition)
        if address is None:
            raise CommandError(
                f"topic {self.topic} has no partition {partition}; it has {len(self._leaders)}, from 0"
            )
        return self.connection_to(*address)

    def connection_to(self, host: str, port: int) -> KafkaClient:
        """The connection to one broker, opened when it is first asked for."""
        address = (host, port)
        if address not in self._connections:
            self._connections[address] = KafkaClient(join_host_port(host, port))
        return self._connections[address]

    def may_retry(self, code: int, tries: int) -> bool:
        """Whether an error passes by itself; waits a moment, and asks anew who leads, if it does."""
        error = error_of(code)
        if not error.retriable or tries >= RETRIES_MAX:
            return False
        time.sleep(RETRY_S)
        if error in _MOVED:
            self._refresh()
        return True

    def _refresh(self) -> None:
        for _ in range(RETRIES_MAX):
            response = self._bootstrap.metadata([self.topic])
            topic = response.topics[0]
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise absent_topic(self.topic)
            if topic.error_code == ErrorCode.NONE and self._take(response, topic):
                return
            time.sleep(RETRY_S)
        raise CommandError(
            f"topic {self.topic}: partitions without a leader for {RETRY_S * RETRIES_MAX:.0f} s; "
            f"`ponor partition list {self.topic}` shows them, `ponor cluster info` the brokers"
        )

    def _take(self, response: MetadataResponse, topic: MetadataResponseTopic) -> bool:
        addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        leaders = {row.partition_index: addresses.get(row.leader_id) for row in topic.partitions}
        self._leaders = {number: address for number, address in leaders.items() if address is not None}
        return bool(leaders) and len(self._leaders) == len(leaders)
