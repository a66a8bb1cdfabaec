"""Request and response headers: what stands before every body, written by hand because every request passes here.

The frame's four-byte length is not part of a header; `frames` strips it and `encode_frame` puts it on.
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
"""A replacement character has three bytes: a longer text may grow beyond what a string of a record or an answer can have."""
_INT32_PAIR: Final = PackedRun(">ii")
_INT32_PAIR_AND_TAGS: Final = PackedRun(">iix")
BUFFERS_MAX: Final = 16
"""Buffers of a body that are written as they are."""
JOINED_BYTES_MAX: Final = 1_024
"""Beyond `BUFFERS_MAX`, buffers up to this size are copied together with their neighbours."""


@dataclass(slots=True)
class RequestHeader:
    """What a request says about itself; `body_position` is where its body starts in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def decode_request_header(buf: Buffer) -> RequestHeader:
    """Read the header at the start of a frame (without its length).

    Raises KafkaWireError when it is malformed or its API key is none that clients send. The version is not judged:
    ApiVersions must be answered whatever version it is asked in.
    """
    if len(buf) < _FIXED.size:
        raise KafkaWireError(f"a request of {len(buf)} bytes is shorter than its header")
    api_key, api_version, correlation_id, client_id_length = _FIXED.unpack_from(buf)
    flexible_min = _FLEXIBLE_MIN.get(api_key)
    if flexible_min is None:
        flexible_min = api_of(api_key).flexible_min  # which says that there is no such key
    pos = _FIXED.size
    client_id = None
    if client_id_length >= 0:
        end = pos + client_id_length
        if end > len(buf):
            raise KafkaWireError(
                f"the client id claims {client_id_length} bytes where {len(buf) - pos} are left"
            )
        # As Kafka: it is a name for people, and no reason to refuse.
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
    """Write a request header in the version that the API and its version ask for."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\x00" if request_header_version(api_key, api_version) == 2 else b""
    return _FIXED.pack(api_key, api_version, correlation_id, length) + name + tags


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """Write a response header in the version that the API and its version ask for."""
    tags = b"\x00" if response_header_version(api_key, api_version) else b""
    return _INT32.pack(correlation_id) + tags


def decode_response_header(api_key: int, api_version: int, buf: Buffer) -> tuple[int, int]:
    """Read a response header. Returns the correlation id and the position of the body."""
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
    """Length, header and body of a response as buffers ready to be written to a connection; of the body only small buffers are copied."""
    size = sum(map(len, body))
    if len(body) > BUFFERS_MAX:
        body = join_small(body)
    if response_header_version(api_key, api_version):
        head = _INT32_PAIR_AND_TAGS.pack(size + 5, correlation_id)
    else:
        head = _INT32_PAIR.pack(size + 4, correlation_id)
    return [head, *body]


def join_small(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: neighbours that are small become one, and what is large, as records are, stays uncopied.

    A write pays for each buffer; copying a kilobyte is cheaper.
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
