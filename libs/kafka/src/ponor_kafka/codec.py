"""Encoding and decoding of every message and version of the schema.

The codec of a (message, version) is built at its first use, which takes about a millisecond, and cached.
Produce requests and Fetch responses have faster paths in `produce_walk` and `fetch_response`.
"""

from collections.abc import Generator
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, cast

from ponor_kafka.api import api_of
from ponor_kafka.compiler.build import (
    Decoder,
    Encoder,
    StepEncoder,
    build_decoder,
    build_encoder,
    build_step_encoder,
)
from ponor_kafka.compiler.layout import Layout
from ponor_kafka.errors import KafkaEncodeError, KafkaWireError
from ponor_kafka.message import Message
from ponor_kafka.primitives import Buffer
from ponor_kafka.schema.model import Schema
from ponor_kafka.schema.reader import parse_schema

M = TypeVar("M", bound=Message)


def decode(api_key: int, api_version: int, buf: Buffer, pos: int = 0) -> tuple[Message, int]:
    """Decode a request body that starts at `pos`. Returns the request and the end position.

    Bytes after the body are ignored, as in Kafka. Raises KafkaWireError for unknown keys and versions and for
    malformed input.
    """
    return decode_as(request_class(api_key), api_version, buf, pos)


def decode_response(api_key: int, api_version: int, buf: Buffer, pos: int = 0) -> tuple[Message, int]:
    """Decode a response body that starts at `pos`; otherwise like `decode`."""
    return decode_as(response_class(api_key), api_version, buf, pos)


def decode_as(message_class: type[M], version: int, buf: Buffer, pos: int = 0) -> tuple[M, int]:
    """Decode a message of a known class; otherwise like `decode`.

    `records` fields are memoryview slices of `buf`; strings and bytes are copies.
    """
    copies, decoder = _decoder(message_class, version)  # type: ignore[arg-type]  # classes are hashable
    if copies:
        # Slices of bytes are cheaper than slices of a memoryview, and these messages have no large fields.
        source: Buffer = buf if type(buf) is bytes else bytes(buf)
    else:
        source = buf if type(buf) is memoryview else memoryview(buf)
    return cast("tuple[M, int]", decoder(source, pos))


def encode(message: Message, version: int) -> bytes:
    """Encode a message body as one bytes object. Raises KafkaEncodeError if `version` cannot represent it."""
    return b"".join(_encoder(type(message), version)(message, []))  # type: ignore[arg-type]  # classes are hashable


def encode_buffers(message: Message, version: int) -> list[Buffer]:
    """Encode a message body as a list of buffers without copying record batches; otherwise like `encode`."""
    return _encoder(type(message), version)(message, [])  # type: ignore[arg-type]  # classes are hashable


def encode_steps(message: Message, version: int) -> Generator[None, None, list[Buffer]]:
    """Encode a message body as a list of buffers in steps of half a millisecond, for responses that may have
    many thousand rows.

    If encoding takes more than one step, record batches are copied.
    """
    return _step_encoder(type(message), version)(message, [])  # type: ignore[arg-type]  # classes are hashable


def encode_versioned(message: Message, version: int) -> bytes:
    """Encode a record body of Kafka's internal topics and consumer protocols: an int16 version, then the
    body.
    """
    return version.to_bytes(2, "big") + encode(message, version)


def decode_versioned(message_class: type[M], buf: Buffer) -> tuple[M, int]:
    """Decode the output of `encode_versioned`. Returns the message and its version.

    A newer version is decoded as the newest known version; these formats guarantee that this works. Raises
    KafkaWireError for malformed input.
    """
    if len(buf) < 2:
        raise KafkaWireError(f"{message_class.__name__}: {len(buf)} bytes are too few for a version")
    version = int.from_bytes(buf[:2], "big", signed=True)
    message, _ = decode_as(message_class, min(version, message_class.VERSION_MAX), buf, 2)
    return message, version


@cache
def request_class(api_key: int) -> type[Message]:
    """Return the request class of an API. Raises KafkaWireError for an unknown key."""
    api = api_of(api_key)
    return cast("type[Message]", getattr(import_module(f"ponor_kafka.messages.{api.module}"), api.request))


@cache
def response_class(api_key: int) -> type[Message]:
    """Return the response class of an API. Raises KafkaWireError for an unknown key."""
    api = api_of(api_key)
    return cast("type[Message]", getattr(import_module(f"ponor_kafka.messages.{api.module}"), api.response))


@cache
def _decoder(message_class: type[Message], version: int) -> tuple[bool, Decoder]:
    """Return whether the decoder needs bytes as input, and the decoder.

    Callers need `type: ignore`: mypy assumes that the classes are unhashable because their instances are.
    """
    if not message_class.VERSION_MIN <= version <= message_class.VERSION_MAX:
        raise KafkaWireError(_unknown_version(message_class, version))
    layout = _layout(message_class, version)
    return not layout.has_records(), build_decoder(layout, _module_names(message_class))


@cache
def _encoder(message_class: type[Message], version: int) -> Encoder:
    return build_encoder(_layout_to_write(message_class, version), _module_names(message_class))


@cache
def _step_encoder(message_class: type[Message], version: int) -> StepEncoder:
    return build_step_encoder(_layout_to_write(message_class, version), _module_names(message_class))


def _layout_to_write(message_class: type[Message], version: int) -> Layout:
    if not message_class.VERSION_MIN <= version <= message_class.VERSION_MAX:
        raise KafkaEncodeError(_unknown_version(message_class, version))
    return _layout(message_class, version)


def _unknown_version(message_class: type[Message], version: int) -> str:
    known = f"{message_class.VERSION_MIN} to {message_class.VERSION_MAX}"
    return f"{message_class.__name__} has no version {version}, only {known}"


def _layout(message_class: type[Message], version: int) -> Layout:
    schema = _schema(message_class.__module__)
    return Layout(schema, schema.message(message_class.__name__), version)


@cache
def _schema(module_name: str) -> Schema:
    return parse_schema(import_module(module_name).SCHEMA)


def _module_names(message_class: type[Message]) -> dict[str, Any]:
    return {
        name: value for name, value in vars(import_module(message_class.__module__)).items() if name[0] != "_"
    }
