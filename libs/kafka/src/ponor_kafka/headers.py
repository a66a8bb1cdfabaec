"""Request and response headers, written by hand because every request passes through here.

The frame's four-byte length is not part of a header; `encode_response_frame` adds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct as PackedRun
from typing import Final

from ponor_kafka.api import APIS, api_of, request_header_version, response_header_version
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer, skip_tagged_fields

_FLEXIBLE_MIN: Final = {key: api.flexible_min for key, api in APIS.items()}
_FIXED: Final = PackedRun(">hhih")
_INT32: Final = PackedRun(">i")
_STRING_BYTES_MAX: Final = (1 << 15) - 1
_REPLACED_BYTES_MAX: Final = _STRING_BYTES_MAX // 3
"""Each invalid byte may become a replacement character of three bytes, so a longer text could exceed the
maximum length of a string."""
_INT32_PAIR: Final = PackedRun(">ii")
_INT32_PAIR_AND_TAGS: Final = PackedRun(">iix")
BUFFERS_MAX: Final = 16
"""A body with at most this many buffers is written without joining any."""
JOINED_BYTES_MAX: Final = 1_024
"""Beyond `BUFFERS_MAX`, adjacent buffers up to this size are joined."""


@dataclass(slots=True)
class RequestHeader:
    """A request header; `body_position` is the start of the body in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def decode_request_header(buf: Buffer) -> RequestHeader:
    """Decode the header at the start of a frame (without its length).

    Raises KafkaWireError if it is malformed or clients do not send its API key. The version is not checked:
    ApiVersions must be answered for any version.
    """
    if len(buf) < _FIXED.size:
        raise KafkaWireError(f"a request of {len(buf)} bytes is shorter than its header")
    api_key, api_version, correlation_id, client_id_length = _FIXED.unpack_from(buf)
    flexible_min = _FLEXIBLE_MIN.get(api_key)
    if flexible_min is None:
        flexible_min = api_of(api_key).flexible_min  # raises for an unknown key
    pos = _FIXED.size
    client_id = None
    if client_id_length >= 0:
        end = pos + client_id_length
        if end > len(buf):
            raise KafkaWireError(
                f"the client id claims {client_id_length} bytes, but only {len(buf) - pos} are left"
            )
        # As in Kafka, invalid UTF-8 is replaced: the id is only for display.
        client_id = str(buf[pos:end], "utf-8", "replace")
        if client_id_length > _REPLACED_BYTES_MAX:
            client_id = client_id.encode()[:_STRING_BYTES_MAX].decode(errors="ignore")
        pos = end
    if api_version >= flexible_min:
        pos = pos + 1 if pos < len(buf) and buf[pos] == 0 else skip_tagged_fields(buf, pos, len(buf))
    return RequestHeader(api_key, api_version, correlation_id, client_id, pos)


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Encode a request header in the header version of the API version."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\x00" if request_header_version(api_key, api_version) == 2 else b""
    return _FIXED.pack(api_key, api_version, correlation_id, length) + name + tags


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Encode a response header in the header version of the API version."""
    tags = b"\x00" if response_header_version(api_key, api_version) else b""
    return _INT32.pack(correlation_id) + tags


def decode_response_header(api_key: int, api_version: int, buf: Buffer) -> tuple[int, int]:
    """Decode a response header. Returns the correlation id and the position of the body."""
    if len(buf) < _INT32.size:
        raise KafkaWireError(f"a response of {len(buf)} bytes is shorter than its header")
    correlation_id: int = _INT32.unpack_from(buf)[0]
    pos = _INT32.size
    if response_header_version(api_key, api_version):
        pos = skip_tagged_fields(buf, pos, len(buf))
    return correlation_id, pos


def encode_response_frame(
    api_key: int, api_version: int, correlation_id: int, body: Sequence[Buffer]
) -> list[Buffer]:
    """Encode length, header and body of a response as buffers for a connection.

    Copies only small body buffers.
    """
    size = sum(map(len, body))
    if len(body) > BUFFERS_MAX:
        body = join_small(body)
    if response_header_version(api_key, api_version):
        head = _INT32_PAIR_AND_TAGS.pack(size + 5, correlation_id)
    else:
        head = _INT32_PAIR.pack(size + 4, correlation_id)
    return [head, *body]


def join_small(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Join adjacent small buffers; large ones, such as records, stay uncopied.

    Copying a kilobyte costs less than one more buffer in a write.
    """
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) <= JOINED_BYTES_MAX:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined
