"""Runs one story against one broker: sends its requests, returns the answers to it, and records both.

It also has the unrecorded set-up steps that most stories need (topics, records).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ponor_kafka.api import APIS
from ponor_kafka.codec import decode_as, decode_response, encode
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.message import Message
from ponor_kafka.messages.api_versions import ApiVersionsResponse
from ponor_kafka.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest
from ponor_kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ponor_kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

from tests.oracle.connection import Closed, Connection, Frame, Silent
from tests.oracle.exchange import Exchange, Told
from tests.oracle.plain import Canon

CLIENT_ID: Final = "oracle"
READY_S_MAX: Final = 300.0
FIRST: Final = "first"
SETTLE_S: Final = 0.3
GROUPS_OF_ALL_PARTITIONS: Final = 40
"""With this many names, each of a few offsets partitions gets some."""
API_VERSIONS_KEY: Final = 18
UNSUPPORTED_VERSION: Final = b"\x00\x23"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic created by a story."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that was sent and not answered yet."""

    note: str
    api_key: int
    version: int
    correlation: int
    request: bytes
    digest: str
    connection: str


@dataclass(frozen=True, slots=True)
class Only:
    """Entries of an answer's array whose field begins with a prefix."""

    array: str
    field: str
    prefix: str


class SetUpFailedError(Exception):
    """A broker refused a required set-up step."""


class Narrator:
    """The connection of one story to one broker."""

    def __init__(self, told: Told, canon: Canon, port: int) -> None:
        self._told = told
        self._canon = canon
        self._port = port
        self._connections: dict[str, Connection] = {}

    def ask(
        self, request: Message, version: int, note: str, *, on: str = FIRST, only: Only | None = None
    ) -> Any:
        """Send a request and return its answer, or None if the broker closed the connection or sent nothing.

        `only` selects the story's own entries of an array that also contains others.
        """
        return self.take(self.send(request, version, note, on=on), only=only)

    def send(self, request: Message, version: int, note: str, *, on: str = FIRST) -> Ticket:
        """Send a request whose answer is read later; `on` names the connection."""
        plain = json.dumps(self._canon.message(request), sort_keys=True, default=str)
        body = encode(request, version)
        return self._send(request.API_KEY, version, body, note, on, f"{version} {plain}")

    def take(self, ticket: Ticket, *, only: Only | None = None) -> Any:
        """Return the answer to a sent request."""
        frame = self._connection(ticket.connection).receive()
        message, answer = self._read(ticket, frame, only)
        self._keep(ticket, answer)
        if message is None:
            self._hang_up(ticket.connection)
        return message

    def tell(self, request: Message, version: int, note: str, *, on: str = FIRST) -> None:
        """Send a request without an answer (acks=0)."""
        self._keep(self.send(request, version, note, on=on), {"none": True})

    def raw(self, api_key: int, version: int, body: bytes, note: str, *, tagged: bool | None = None) -> Any:
        """Send an arbitrary body after a valid header; `tagged` says whether that header is flexible."""
        if tagged is None and api_key in APIS:
            header = encode_request_header(api_key, version, 0, CLIENT_ID)
            tagged = header.endswith(b"\x00")
        head = api_key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
        correlation = self._connection(FIRST).next_correlation()
        name = len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID.encode()
        frame = head + correlation.to_bytes(4, "big") + name + (b"\x00" if tagged else b"") + body
        self._connection(FIRST).send(frame)
        digest = hashlib.sha256(head + body).hexdigest()[:16]
        return self.take(Ticket(note, api_key, version, correlation, frame, digest, FIRST))

    def frame(self, frame: bytes, note: str, *, length: int | None = None) -> None:
        """Send arbitrary bytes as a frame; `length` replaces its true length."""
        self._connection(FIRST).send(frame, length=length)
        answer = self._connection(FIRST).receive()
        kept = {"closed": True} if isinstance(answer, Closed) else {"silent": True}
        if isinstance(answer, bytes):
            kept = {"undecodable": answer.hex()}  # type: ignore[dict-item]
        digest = hashlib.sha256(frame + str(length).encode()).hexdigest()[:16]
        self._keep(Ticket(note, -1, -1, 0, frame, digest, FIRST), kept)
        self._hang_up(FIRST)

    def named(self, client_id: bytes, request: Message, version: int, note: str) -> Any:
        """Send a request under a client id of any bytes (not for flexible headers)."""
        correlation = self._connection(FIRST).next_correlation()
        header = encode_request_header(request.API_KEY, version, correlation, None)[:-2]
        frame = header + len(client_id).to_bytes(2, "big") + client_id + encode(request, version)
        self._connection(FIRST).send(frame)
        digest = hashlib.sha256(client_id).hexdigest()[:16]
        return self.take(Ticket(note, request.API_KEY, version, correlation, frame, digest, FIRST))

    def hang_up(self, on: str = FIRST) -> None:
        """Close a connection; the next request opens another."""
        self._hang_up(on)

    def call(self, kind: str, value: object, name: str) -> None:
        """Name an id assigned by the broker, if the order of ids in answers may differ."""
        self._canon.call(kind, value, name)

    def topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Topic:
        """Set-up: create a topic and wait until all partitions have leaders."""
        wanted = [CreatableTopicConfig(key, value) for key, value in (configs or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=wanted)
        made = self._quietly(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
        if made.topics[0].error_code:
            raise SetUpFailedError(f"{name} was not created: {made.topics[0].error_message}")
        self._canon.message(made)  # from here on, the topic's id is named after it
        self.wait_for_leaders(name, partitions)
        return Topic(name, bytes(made.topics[0].topic_id))

    def warm_up(self) -> None:
        """Set-up: wait until all partitions of the group coordinator and producer ids work, so that
        no story depends on being the first.
        """
        deadline = time.monotonic() + READY_S_MAX
        for number in range(GROUPS_OF_ALL_PARTITIONS):
            while not self._serves_group(f"warm-up-{number}"):
                if time.monotonic() > deadline:
                    raise SetUpFailedError("there is no group coordinator")
                time.sleep(0.02)
        while self._quietly(InitProducerIdRequest(None, 60_000), 4).error_code:
            time.sleep(0.02)

    def settle(self) -> None:
        """Set-up: wait until a change has reached all components. Kafka answers before its broker
        has applied it.
        """
        time.sleep(SETTLE_S)

    def _serves_group(self, group: str) -> bool:
        if self._quietly(FindCoordinatorRequest(group, 0), 3).error_code:
            return False
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)])
        return bool(self._quietly(asked, 8).groups[0].error_code == 0)

    def wait_for_leaders(self, name: str, partitions: int) -> None:
        """Wait until every partition's leader serves it. Kafka's Metadata names a leader slightly earlier."""
        deadline = time.monotonic() + READY_S_MAX
        wanted = [ListOffsetsPartition(index, timestamp=-1) for index in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name, wanted)])
        while any(row.error_code for row in self._quietly(request, 5).topics[0].partitions):
            if time.monotonic() > deadline:
                raise SetUpFailedError(f"{name} has no leaders")
            time.sleep(0.01)

    def fill(self, topic: Topic, batches: Sequence[bytes | bytearray], partition: int = 0) -> int:
        """Set-up: append batches one by one; return the base offset of the first."""
        offsets = []
        for batch in batches:
            data = [
                TopicProduceData(topic.name, partition_data=[PartitionProduceData(partition, bytes(batch))])
            ]
            answer = self._quietly(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 9)
            row = answer.responses[0].partition_responses[0]
            if row.error_code:
                raise SetUpFailedError(f"{topic.name} takes no records: {row.error_code} {row.error_message}")
            offsets.append(row.base_offset)
        return int(offsets[0])

    def quietly(self, request: Message, version: int) -> Any:
        """Set-up: send a request that is not recorded."""
        return self._quietly(request, version)

    def close(self) -> None:
        """Close all connections."""
        for name in list(self._connections):
            self._hang_up(name)

    def _quietly(self, request: Message, version: int) -> Any:
        ticket = self._send(request.API_KEY, version, encode(request, version), "", "set-up", "")
        message, answer = self._read(ticket, self._connection("set-up").receive())
        if message is None:
            raise SetUpFailedError(f"{type(request).__name__} v{version} was not answered: {answer}")
        return message

    def _send(self, key: int, version: int, body: bytes, note: str, on: str, plain: str) -> Ticket:
        connection = self._connection(on)
        correlation = connection.next_correlation()
        frame = encode_request_header(key, version, correlation, CLIENT_ID) + body
        connection.send(frame)
        return Ticket(
            note, key, version, correlation, frame, hashlib.sha256(plain.encode()).hexdigest()[:16], on
        )

    def _read(
        self, ticket: Ticket, frame: Frame, only: Only | None = None
    ) -> tuple[Message | None, dict[str, Any]]:
        if isinstance(frame, Closed):
            return None, {"closed": True}
        if isinstance(frame, Silent):
            return None, {"silent": True}
        try:
            message = _decode(ticket, frame)
        except KafkaWireError:
            return None, {"undecodable": frame.hex()}
        if only is not None:
            rows = getattr(message, only.array)
            setattr(
                message, only.array, [row for row in rows if getattr(row, only.field).startswith(only.prefix)]
            )
        return message, {"body": self._canon.message(message)}

    def _keep(self, ticket: Ticket, answer: dict[str, Any]) -> None:
        api = (
            APIS[ticket.api_key].request.removesuffix("Request")
            if ticket.api_key in APIS
            else f"key {ticket.api_key}"
        )
        self._told.exchanges.append(
            Exchange(ticket.note, api, ticket.version, ticket.request, ticket.digest, answer)
        )

    def _connection(self, name: str) -> Connection:
        if name not in self._connections:
            self._connections[name] = Connection(self._port)
        return self._connections[name]

    def _hang_up(self, name: str) -> None:
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()


def _decode(ticket: Ticket, frame: bytes) -> Message:
    message: Message
    correlation, position = decode_response_header(ticket.api_key, ticket.version, frame)
    if ticket.api_key == API_VERSIONS_KEY and frame[position : position + 2] == UNSUPPORTED_VERSION:
        # An unsupported version is answered in version 0 (KIP-511).
        message, end = decode_as(ApiVersionsResponse, 0, frame, position)
    else:
        message, end = decode_response(ticket.api_key, ticket.version, frame, position)
    if correlation != ticket.correlation or end != len(frame):
        raise KafkaWireError("the answer does not belong to the request, or has bytes left over")
    return message
