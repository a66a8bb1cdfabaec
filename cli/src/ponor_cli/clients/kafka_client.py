"""A blocking Kafka client for administrative commands: one connection, one request at a time."""

from __future__ import annotations

import socket
from typing import Self, TypeVar

from ponor_kafka.client_requests import ClientRequests
from ponor_kafka.errors import KafkaWireError, error_of
from ponor_kafka.message import Message
from ponor_kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ponor_kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ponor_runtime.host_port import split_host_port

from ponor_cli.errors import CommandError

R = TypeVar("R", bound=Message)
CLIENT_ID = "ponor-cli"
TIMEOUT_S = 60.0
RESPONSE_BYTES_MAX = 100 * 1024 * 1024
BROKER_RESOURCE = 4


class KafkaClient:
    """A connection to the first broker of `bootstrap` (HOST:PORT,HOST:PORT,...) that accepts a connection.

    Raises (all calls): `CommandError` when no broker can be reached, or the broker does not answer.
    """

    def __init__(self, bootstrap: str) -> None:
        self._address, self._socket = _connect_to_any(bootstrap)
        self._requests: ClientRequests[None] = ClientRequests(CLIENT_ID)
        self._versions = self._negotiate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def call(self, request: Message, response_class: type[R], *, version_max: int | None = None) -> R:
        """Send a request in the newest version that both sides support, at most `version_max`.
        Returns the response.
        """
        key = request.API_KEY
        low, high = self._versions.get(key, (0, -1))
        version = min(high, request.VERSION_MAX if version_max is None else version_max)
        if version < max(low, request.VERSION_MIN):
            raise CommandError(f"the broker at {self._address} does not support {type(request).__name__}")
        return self._exchange(request, response_class, version)

    def metadata(self, topics: list[str] | None) -> MetadataResponse:
        """Return brokers and topics; None means all topics. Never creates a topic."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        return self.call(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), MetadataResponse)

    def broker_configs(self, names: list[str]) -> dict[str, str]:
        """Return those of the named broker configs that are set."""
        node_id = self.metadata([]).controller_id
        resource = DescribeConfigsResource(
            resource_type=BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=names
        )
        response = self.call(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
        return {
            config.name: config.value
            for result in response.results
            for config in result.configs
            if config.value
        }

    def _negotiate(self) -> dict[int, tuple[int, int]]:
        request = ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version="0.1.0")
        response = self._exchange(request, ApiVersionsResponse, 3)
        return {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}

    def _exchange(self, request: Message, response_class: type[R], version: int) -> R:
        body = self._requests.ask(request, version, None)
        try:
            self._socket.sendall(len(body).to_bytes(4, "big") + body)
            length = int.from_bytes(self._read(4), "big")
            if length > RESPONSE_BYTES_MAX:
                raise CommandError(
                    f"the broker at {self._address} sent a response length of {length} bytes; is this"
                    " a Kafka port?"
                )
            _, answer = self._requests.answer(self._read(length))
        except (OSError, KafkaWireError) as error:
            raise CommandError(
                f"the broker at {self._address} sent no valid Kafka response: {error}"
            ) from error
        assert isinstance(answer, response_class)
        return answer

    def _read(self, length: int) -> bytes:
        parts = []
        while length:
            part = self._socket.recv(min(length, 1 << 20))
            if not part:
                raise OSError("it closed the connection; is this a Kafka port?")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def _connect_to_any(bootstrap: str) -> tuple[str, socket.socket]:
    addresses = bootstrap.split(",")
    reason: OSError | None = None
    for address in addresses:
        try:
            host, port = split_host_port(address)
        except ValueError as error:
            raise CommandError(
                f"--bootstrap {bootstrap}: write HOST:PORT,HOST:PORT,...; an IPv6 address needs"
                " brackets: [::1]:9092"
            ) from error
        try:
            return address, socket.create_connection((host, port), TIMEOUT_S / len(addresses))
        except OSError as error:
            reason = error
    assert reason is not None
    raise CommandError(
        f"no broker answers at {bootstrap} ({reason.strerror or reason}); is the cluster running?"
    ) from reason


def error_name(code: int) -> str:
    """Return the name of an error code, or its number if it is not defined here."""
    error = error_of(code)
    return error.name if error == code else str(code)
