"""Headers, the API table and the error codes."""

import struct

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from ponor_kafka.api import APIS, ApiKey, api_of, request_header_version, response_header_version
from ponor_kafka.codec import decode_as, encode
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_frame,
    encode_response_header,
)
from ponor_kafka.messages.request_header import RequestHeader
from ponor_kafka.messages.response_header import ResponseHeader

ASKED = [
    (key, version) for key, api in APIS.items() for version in range(api.version_min, api.version_max + 1)
]


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "ü" * 100])
def test_request_headers_match_the_schema(client_id: str | None) -> None:
    for key, version in ASKED:
        wire = encode_request_header(key, version, 77, client_id)
        header = RequestHeader(key, version, 77, client_id)

        assert wire == encode(header, request_header_version(key, version))
        decoded = decode_request_header(wire + b"body")
        assert (decoded.api_key, decoded.api_version, decoded.correlation_id) == (key, version, 77)
        assert decoded.client_id == client_id
        assert decoded.body_position == len(wire)


def test_response_headers_match_the_schema() -> None:
    for key, version in ASKED:
        wire = encode_response_header(key, version, -5)
        header_version = response_header_version(key, version)

        assert wire == encode(ResponseHeader(-5), header_version)
        assert decode_response_header(key, version, wire + b"body") == (-5, len(wire))
        assert decode_as(ResponseHeader, header_version, wire) == (ResponseHeader(-5), len(wire))
        head, *body = encode_response_frame(key, version, -5, [b"one", memoryview(b"two")])
        assert b"".join((head, *body)) == (len(wire) + 6).to_bytes(4, "big") + wire + b"onetwo"


def test_header_with_tagged_fields_is_decoded() -> None:
    wire = encode_request_header(ApiKey.METADATA, 12, 1, "c")[:-1] + bytes((1, 0, 2)) + b"zz"
    assert decode_request_header(wire + b"body").body_position == len(wire)


def test_api_versions_header_of_a_future_version_is_decoded() -> None:
    wire = encode_request_header(ApiKey.API_VERSIONS, 99, 1, "c")
    assert decode_request_header(wire).api_version == 99


def test_malformed_headers_are_wire_errors() -> None:
    whole = encode_request_header(ApiKey.METADATA, 12, 1, "client")
    for cut in range(len(whole)):
        with pytest.raises(KafkaWireError):
            decode_request_header(whole[:cut])
    for unknown in (-1, 4, 52, 999):
        with pytest.raises(KafkaWireError, match=str(unknown)):
            decode_request_header(unknown.to_bytes(2, "big", signed=True) + whole[2:])
    with pytest.raises(KafkaWireError):
        decode_response_header(ApiKey.METADATA, 12, b"\x00\x00\x00")


def test_client_id_that_is_not_utf_8_is_decoded_as_in_kafka() -> None:
    whole = encode_request_header(ApiKey.METADATA, 12, 1, "client")
    header = decode_request_header(whole.replace(b"client", b"cli\xffnt"))
    assert header.client_id == "cli\ufffdnt"
    assert header.body_position == len(whole)


@pytest.mark.parametrize("name", [b"\xff", b"\xc3\xbc", b"a"])
def test_the_longest_client_id_is_a_string_that_can_be_written(name: bytes) -> None:
    wire = name * ((1 << 15) // len(name) - 1)
    header = decode_request_header(struct.pack(">hhih", ApiKey.JOIN_GROUP, 0, 1, len(wire)) + wire)
    assert header.client_id is not None
    assert header.body_position == 10 + len(wire)
    written = decode_request_header(encode_request_header(ApiKey.JOIN_GROUP, 0, 1, header.client_id))
    assert written.client_id == header.client_id
    assert name == b"\xff" or header.client_id.encode() == wire


def test_api_versions_response_has_the_oldest_header_in_every_version() -> None:
    assert [response_header_version(ApiKey.API_VERSIONS, version) for version in range(6)] == [0] * 6
    assert response_header_version(ApiKey.METADATA, 8) == 0
    assert response_header_version(ApiKey.METADATA, 9) == 1


def test_version_ranges_are_those_of_kafka_4_4() -> None:
    ranges = {api.key.name: (api.version_min, api.version_max, api.flexible_min) for api in APIS.values()}
    assert ranges["PRODUCE"] == (3, 13, 9)
    assert ranges["FETCH"] == (4, 18, 12)
    assert ranges["LIST_OFFSETS"] == (1, 11, 6)
    assert ranges["JOIN_GROUP"] == (0, 9, 6)
    assert api_of(ApiKey.INIT_PRODUCER_ID).unstable_min == 6
    assert not api_of(ApiKey.OFFSET_DELETE).is_flexible(0)
    assert api_of(ApiKey.FETCH).knows(18)
    assert not api_of(ApiKey.FETCH).knows(3)
    assert len(APIS) == 79


def test_there_are_138_error_codes() -> None:
    assert sorted(ErrorCode) == list(range(-1, 137))
    assert len({code.meaning for code in ErrorCode}) == 138


def test_error_codes_agree_with_kio() -> None:
    for theirs in KioErrorCode:
        ours = ErrorCode(theirs.value)
        assert (ours.name.lower(), ours.retriable) == (theirs.name, theirs.retriable)


@pytest.mark.parametrize("code", [1, 10, 22, 25, 27, 45, 47, 134, 135, 136, -1])
def test_codes_that_clients_do_not_retry(code: int) -> None:
    assert not ErrorCode(code).retriable
