"""Execution of generated codec source with the names that it uses."""

from collections.abc import Callable, Generator, Mapping, Sequence
from struct import error as struct_error
from struct import pack, unpack_from
from typing import Any, Final

from ponor_kafka.compiler.decoder import decoder_source
from ponor_kafka.compiler.encoder import encoder_source
from ponor_kafka.compiler.layout import Layout
from ponor_kafka.errors import KafkaEncodeError, KafkaWireError
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.primitives import (
    Buffer,
    Records,
    decode_unsigned_varint,
    decode_unsigned_varint_tail,
    encode_compact_string_length,
    encode_unsigned_varint,
    skip_tagged_fields,
)

Decoder = Callable[[Buffer, int], tuple[Any, int]]
Encoder = Callable[[Any, list[Buffer]], list[Buffer]]
StepEncoder = Callable[[Any, list[Buffer]], Generator[None, None, list[Buffer]]]


def build_decoder(layout: Layout, classes: Mapping[str, Any]) -> Decoder:
    """Build the decoder of `layout`; for malformed bytes it raises only KafkaWireError."""
    source, names = decoder_source(layout)
    bare: Decoder = _execute(source, {**classes, **names, **_DECODER_NAMES}, layout, "decode")
    what = f"{layout.message.name} version {layout.version}"

    def decode(buf: Buffer, pos: int) -> tuple[Any, int]:
        try:
            return bare(buf, pos)
        except KafkaWireError as error:
            raise KafkaWireError(f"{what}: {error}") from None
        except (struct_error, IndexError) as error:
            raise KafkaWireError(f"{what}: ends early, after {len(buf)} bytes") from error
        except UnicodeDecodeError as error:
            raise KafkaWireError(f"{what}: a string is not UTF-8: {error.reason}") from error

    return decode


def build_encoder(layout: Layout, classes: Mapping[str, Any]) -> Encoder:
    """Build the encoder of `layout`.

    It raises KafkaEncodeError for values that the version cannot represent.
    """
    source, names = encoder_source(layout)
    bare: Encoder = _execute(source, {**classes, **names, **_ENCODER_NAMES}, layout, "encode")
    what = f"{layout.message.name} version {layout.version}"

    def encode(message: Any, out: list[Buffer]) -> list[Buffer]:
        try:
            return bare(message, out)
        except _ENCODER_ERRORS as error:
            raise _named(error, what) from error

    return encode


def build_step_encoder(layout: Layout, classes: Mapping[str, Any]) -> StepEncoder:
    """Build the encoder of `layout` as a generator of short steps; otherwise like `build_encoder`."""
    source, names = encoder_source(layout, in_steps=True)
    bare: StepEncoder = _execute(source, {**classes, **names, **_ENCODER_NAMES}, layout, "encode")
    what = f"{layout.message.name} version {layout.version}"

    def encode(message: Any, out: list[Buffer]) -> Generator[None, None, list[Buffer]]:
        try:
            return (yield from bare(message, out))
        except _ENCODER_ERRORS as error:
            raise _named(error, what) from error

    return encode


def _named(error: Exception, what: str) -> KafkaEncodeError:
    if isinstance(error, KafkaEncodeError):
        return KafkaEncodeError(f"{what}: {error}")
    return KafkaEncodeError(f"{what}: a field holds a value of the wrong type or range: {error}")


def _execute(source: str, namespace: dict[str, Any], layout: Layout, name: str) -> Any:
    code = compile(source, f"<{name} {layout.message.name} v{layout.version}>", "exec")
    exec(code, namespace)  # noqa: S102  # source generated from this package's schema files
    return namespace[name]


def _bad_length(field: str, length: int, left: int) -> KafkaWireError:
    return KafkaWireError(
        f"{field} claims {length} bytes, but only {left} are left, or its type allows fewer"
    )


def _bad_count(field: str, count: int, left: int) -> KafkaWireError:
    return KafkaWireError(f"{field} claims {count} elements, more than the {left} bytes left can hold")


def _null_value(field: str) -> KafkaWireError:
    return KafkaWireError(f"{field} is null, which this version does not allow")


def _unrepresentable(struct: str, field: str) -> KafkaEncodeError:
    return KafkaEncodeError(f"{struct}.{field} has a value that this version cannot represent")


def _record_buffers(records: Records | None) -> tuple[Sequence[Buffer], int]:
    if records is None:
        return (), -1
    if isinstance(records, bytes | bytearray | memoryview):
        return (records,), len(records)
    return records, sum(map(len, records))


def _tag_buffer(tags: Sequence[tuple[int, list[Buffer]]]) -> bytes:
    out: list[bytes] = [encode_unsigned_varint(len(tags))]
    for tag, parts in tags:
        body = b"".join(parts)
        out += (encode_unsigned_varint(tag), encode_unsigned_varint(len(body)), body)
    return b"".join(out)


_ENCODER_ERRORS: Final = (KafkaEncodeError, struct_error, TypeError, AttributeError, UnicodeEncodeError)
_DECODER_NAMES: Final[Mapping[str, Any]] = {
    "ZERO_UUID": ZERO_UUID,
    "bad_count": _bad_count,
    "bad_length": _bad_length,
    "null_value": _null_value,
    "skip_tagged_fields": skip_tagged_fields,
    "unpack_from": unpack_from,
    "varint": decode_unsigned_varint,
    "varint_tail": decode_unsigned_varint_tail,
}
_ENCODER_NAMES: Final[Mapping[str, Any]] = {
    "ZERO_UUID": ZERO_UUID,
    "one_byte": tuple(bytes((value,)) for value in range(128)),
    "pack": pack,
    "record_buffers": _record_buffers,
    "string_length": encode_compact_string_length,
    "tag_buffer": _tag_buffer,
    "unrepresentable": _unrepresentable,
    "varint": encode_unsigned_varint,
}
