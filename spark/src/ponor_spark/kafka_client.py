"""Small blocking Kafka client for `tail=broker`: partition leaders, end offsets, fetches.

Every call goes to the partition's leader and names the topic by id where the protocol supports it, so that a
read of a topic that was deleted and recreated fails instead of returning records of the new topic. Transient
failures (a moved partition, a lost connection) are retried within a bound.
"""

from __future__ import annotations

import socket  # noqa: TID251 - a task blocks until its records are there; it has no event loop
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Final, TypeVar

from ponor_kafka.api import ApiKey
from ponor_kafka.client_requests import ClientRequests
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.message import Message
from ponor_kafka.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ponor_kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from ponor_runtime.host_port import split_host_port

from ponor_spark.errors import PonorSparkError

_R = TypeVar("_R", bound=Message)
_T = TypeVar("_T")
CLIENT_ID: Final = "ponor-spark"
METADATA_VERSION: Final = 12
LIST_OFFSETS_VERSION: Final = 7
FETCH_VERSION: Final = 13
LATEST_TIMESTAMP: Final = -1
CALL_TIMEOUT_S: Final = 30.0
ATTEMPTS_MAX: Final = 40
PAUSE_S: Final = 0.25
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
FETCH_WAIT_MS_MAX: Final = 500


class TopicReplacedError(PonorSparkError):
    """The topic was recreated under this name."""


class NoBrokerError(Exception):
    """No broker answers; the message has the error of the last one tried."""


class _Again(Exception):  # noqa: N818 - a signal between two functions below, not an error of this module
    """A transient failure of one attempt; the message describes it."""


class BrokerConnection:
    """One connection, one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        """Connect.

        Raises:
            OSError: the connection failed.
        """
        self._socket: Final = socket.create_connection((host, port), timeout=CALL_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests: ClientRequests[None] = ClientRequests(CLIENT_ID)

    def call(self, request: Message, version: int, response: type[_R]) -> _R:
        """Send a request and wait for its answer.

        Raises:
            OSError: the connection broke or took longer than `CALL_TIMEOUT_S`.
            KafkaWireError: the answer violates the protocol.
        """
        request_frame = self._requests.ask(request, version, None)
        self._socket.sendall(len(request_frame).to_bytes(4, "big") + request_frame)
        size_bytes = int.from_bytes(self._receive(4), "big")
        if size_bytes > ANSWER_BYTES_MAX:
            raise KafkaWireError(f"an answer of {size_bytes} bytes is more than {ANSWER_BYTES_MAX}")
        _, answer = self._requests.answer(self._receive(size_bytes))
        assert isinstance(answer, response)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self, size_bytes: int) -> memoryview:
        data = memoryview(bytearray(size_bytes))
        received = 0
        while received < size_bytes:
            more = self._socket.recv_into(data[received:])
            if more == 0:
                raise ConnectionError("the broker closed the connection")
            received += more
        return data


def ask_first(brokers: Sequence[str], ask: Callable[[BrokerConnection], _T]) -> _T:
    """Return the result of `ask` from the first broker (HOST:PORT) that answers.

    Raises:
        NoBrokerError: none answers.
    """
    reason = "no broker is known"
    for address in brokers:
        try:
            with closing(BrokerConnection(*split_host_port(address))) as connection:
                return ask(connection)
        except (OSError, KafkaWireError) as error:
            reason = f"{address}: {error}"
    raise NoBrokerError(reason)


class KafkaClient:
    """Sends requests to the current leader of a partition. Each task and each planning opens its own client
    and closes it.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        pause: Callable[[float], None] = time.sleep,  # noqa: TID251 - as above
    ) -> None:
        """Create a client without connecting.

        Args:
            bootstrap: host and port of some brokers.
            pause: waits for the given seconds.
        """
        assert bootstrap, "a client needs a broker to begin with"
        self._bootstrap: Final = tuple(bootstrap)
        self._pause: Final = pause
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._leaders: dict[tuple[bytes, int], tuple[str, int]] = {}

    def end_offset(self, topic: str, topic_id: bytes, partition: int, *, read_committed: bool) -> int:
        """Return the last stable offset (`read_committed`) or the high watermark.

        Raises:
            TopicReplacedError: the topic has another id now.
            PonorSparkError: the brokers do not answer within the bounds.
        """

        def ask(connection: BrokerConnection) -> int:
            wanted = ListOffsetsPartition(partition, -1, LATEST_TIMESTAMP)
            request = ListOffsetsRequest(-1, int(read_committed), [ListOffsetsTopic(topic, [wanted])])
            answer = connection.call(request, LIST_OFFSETS_VERSION, ListOffsetsResponse)
            found = answer.topics[0].partitions[0]
            self._check(found.error_code, topic, partition)
            return found.offset

        return self._ask_leader(topic, topic_id, partition, ask)

    def fetch(
        self, topic: str, topic_id: bytes, partition: int, offset: int, *, read_committed: bool
    ) -> PartitionData:
        """Fetch batches, beginning with the batch that holds `offset`: at most `FETCH_BYTES_MAX`, but at
        least one batch if one exists.

        Raises:
            TopicReplacedError: the topic has another id now.
            PonorSparkError: the offset is below the log start now, or the brokers do not answer within the
                bounds.
        """

        def ask(connection: BrokerConnection) -> PartitionData:
            wanted = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES_MAX)
            request = FetchRequest(
                max_wait_ms=FETCH_WAIT_MS_MAX,
                min_bytes=1,
                max_bytes=FETCH_BYTES_MAX,
                isolation_level=int(read_committed),
                topics=[FetchTopic(topic, topic_id, [wanted])],
            )
            answer = connection.call(request, FETCH_VERSION, FetchResponse)
            if answer.error_code:
                raise _Again(_meaning(answer.error_code))
            found = answer.responses[0].partitions[0]
            self._check(found.error_code, topic, partition)
            return found

        return self._ask_leader(topic, topic_id, partition, ask)

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _ask_leader(
        self, topic: str, topic_id: bytes, partition: int, ask: Callable[[BrokerConnection], _T]
    ) -> _T:
        problem = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                leader = self._leaders.get((topic_id, partition)) or self._find_leader(
                    topic, topic_id, partition
                )
                return self._with(leader, ask)
            except _Again as error:
                problem = str(error)
                self._leaders.pop((topic_id, partition), None)
                self._pause(PAUSE_S)
        raise PonorSparkError(
            f"tail=broker: {topic} {partition}: no answer after {ATTEMPTS_MAX} attempts: {problem};"
            " check kafka.bootstrap.servers and the brokers, or read with tail=committed"
        )

    def _find_leader(self, topic: str, topic_id: bytes, partition: int) -> tuple[str, int]:
        request = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer = self._ask_any(
            lambda connection: connection.call(request, METADATA_VERSION, MetadataResponse)
        )
        found = answer.topics[0]
        if found.error_code:
            raise _Again(_meaning(found.error_code))
        if found.topic_id != topic_id:
            raise TopicReplacedError(
                f"topic {topic!r} was deleted and recreated since the snapshot was opened; load() again"
            )
        led: MetadataResponsePartition | None = next(
            (row for row in found.partitions if row.partition_index == partition), None
        )
        address = next(
            (
                (broker.host, broker.port)
                for broker in answer.brokers
                if led and broker.node_id == led.leader_id
            ),
            None,
        )
        if address is None:
            raise _Again("the partition has no leader now")
        self._leaders[topic_id, partition] = address
        return address

    def _ask_any(self, ask: Callable[[BrokerConnection], _T]) -> _T:
        problem = ""
        for address in dict.fromkeys([*self._connections, *self._bootstrap]):
            try:
                return self._with(address, ask)
            except _Again as error:
                problem = str(error)
        raise _Again(problem)

    def _with(self, address: tuple[str, int], ask: Callable[[BrokerConnection], _T]) -> _T:
        try:
            connection = self._connections.get(address)
            if connection is None:
                connection = self._connections[address] = BrokerConnection(*address)
            return ask(connection)
        except (OSError, KafkaWireError) as error:
            broken = self._connections.pop(address, None)
            if broken is not None:
                with suppress(OSError):
                    broken.close()
            raise _Again(f"{address[0]}:{address[1]}: {error}") from error

    @staticmethod
    def _check(code: int, topic: str, partition: int) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise PonorSparkError(
                f"tail=broker: {topic} {partition}: the log start moved past the snapshot's end (retention or"
                " DeleteRecords); load() again"
            )
        if code == ErrorCode.NONE:
            return
        if ErrorCode(code).retriable:
            raise _Again(_meaning(code))
        raise PonorSparkError(
            f"tail=broker: {topic} {partition}: the broker refused the request: {_meaning(code)}"
        )


def _meaning(code: int) -> str:
    known = ErrorCode(code)
    return f"{known.name} ({known.meaning})"


assert {FetchRequest.API_KEY, ListOffsetsRequest.API_KEY, MetadataRequest.API_KEY} == {
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
}
