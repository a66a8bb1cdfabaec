"""Spans of Kafka requests, from frame to answer.

Only sampled requests use this module. Attributes follow OpenTelemetry's semantic conventions 1.4x for
messaging/kafka where they exist.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.headers import RequestHeader
from ponor_runtime.tracing import Attributes, AttributeValue, Span, SpanKind, Tracing

from ponor_broker.requests.connection import ConnectionContext

_OPERATIONS: Final = {
    ApiKey.PRODUCE: ("send", "send"),
    ApiKey.FETCH: ("poll", "receive"),
    ApiKey.OFFSET_COMMIT: ("commit", "settle"),
}
"""Messaging operation name and type of three requests; the conventions define none for the others."""


def begin_request(
    tracing: Tracing, header: RequestHeader, connection: ConnectionContext, received_ns: int
) -> Span | None:
    """Return the span of a request; None if it is not sampled."""
    return tracing.begin(
        "ponor.kafka.request", _attributes(header, connection), kind=SpanKind.SERVER, started_ns=received_ns
    )


def partition_attributes(
    topic: str, index: int, base_offset: int, records: int, size_bytes: int
) -> Attributes:
    """Attributes of an appended batch."""
    return {
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(index),
        "messaging.kafka.offset": base_offset,
        "messaging.batch.message_count": records,
        "messaging.message.envelope.size": size_bytes,
    }


def _attributes(header: RequestHeader, connection: ConnectionContext) -> Attributes:
    host, _, port = connection.peer.rpartition(":")
    attributes: dict[str, AttributeValue] = {
        "messaging.system": "kafka",
        "ponor.kafka.api": ApiKey(header.api_key).name.lower(),
        "ponor.kafka.api_version": header.api_version,
        "ponor.kafka.correlation_id": header.correlation_id,
        "network.peer.address": host or connection.peer,
    }
    if port.isdecimal():
        attributes["network.peer.port"] = int(port)
    if header.client_id:
        attributes["messaging.client.id"] = header.client_id
    operation = _OPERATIONS.get(ApiKey(header.api_key))
    if operation is not None:
        attributes["messaging.operation.name"], attributes["messaging.operation.type"] = operation
    return attributes
