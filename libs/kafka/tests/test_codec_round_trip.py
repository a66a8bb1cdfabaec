"""Every message in every version round-trips, and malformed bytes raise only KafkaWireError."""

import random
import tracemalloc
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_kafka.api import APIS, ApiKey
from ponor_kafka.codec import (
    decode,
    decode_as,
    decode_response,
    encode,
    encode_buffers,
    encode_steps,
    request_class,
    response_class,
)
from ponor_kafka.errors import KafkaEncodeError, KafkaWireError
from ponor_kafka.message import Message, Struct
from ponor_kafka.messages.api_versions import ApiVersionsRequest
from ponor_kafka.messages.create_topics import CreateTopicsRequest
from ponor_kafka.messages.fetch import FetchRequest
from ponor_kafka.messages.heartbeat import HeartbeatRequest
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ponor_kafka.messages.offset_commit import OffsetCommitRequest
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_runtime.turns import at_once

MakeMessage = Callable[[type[Message], int, random.Random], Message]

TRUNCATIONS_MAX = 200
MUTATIONS = 40
RECORD_SIDE = [
    ("aborted_txn", "AbortedTxn"),
    ("consumer_protocol_assignment", "ConsumerProtocolAssignment"),
    ("consumer_protocol_subscription", "ConsumerProtocolSubscription"),
    ("end_txn_marker", "EndTxnMarker"),
    ("group_coordinator_records", "OffsetCommitKey"),
    ("group_coordinator_records", "OffsetCommitValue"),
    ("group_coordinator_records", "GroupMetadataKey"),
    ("group_coordinator_records", "GroupMetadataValue"),
    ("request_header", "RequestHeader"),
    ("response_header", "ResponseHeader"),
    ("share_coordinator_records", "ShareSnapshotKey"),
    ("share_coordinator_records", "ShareSnapshotValue"),
    ("share_coordinator_records", "ShareUpdateKey"),
    ("share_coordinator_records", "ShareUpdateValue"),
    ("transaction_coordinator_records", "TransactionLogKey"),
    ("transaction_coordinator_records", "TransactionLogValue"),
]


def message_classes() -> list[type[Message]]:
    classes = [one(key) for key in sorted(APIS) for one in (request_class, response_class)]
    return classes + [
        getattr(import_module(f"ponor_kafka.messages.{module}"), name) for module, name in RECORD_SIDE
    ]


def versions(message_class: type[Message]) -> Iterator[int]:
    return iter(range(message_class.VERSION_MIN, message_class.VERSION_MAX + 1))


@pytest.mark.parametrize("message_class", message_classes(), ids=lambda one: one.__name__)
def test_encoded_message_round_trips(message_class: type[Message], make_message: MakeMessage) -> None:
    for version in versions(message_class):
        for seed in range(3):
            message = make_message(message_class, version, random.Random(f"round {version} {seed}"))
            wire = encode(message, version)

            assert b"".join(encode_buffers(message, version)) == wire
            assert b"".join(at_once(encode_steps(message, version))) == wire
            assert decode_as(message_class, version, b"\xff" * 5 + wire + b"trailing", 5) == (
                message,
                len(wire) + 5,
            )
            assert decode_as(message_class, version, memoryview(bytearray(wire))) == (message, len(wire))


@pytest.mark.parametrize("message_class", message_classes(), ids=lambda one: one.__name__)
def test_truncated_message_is_a_wire_error(message_class: type[Message], make_message: MakeMessage) -> None:
    for version in versions(message_class):
        wire = encode(make_message(message_class, version, random.Random(f"cut {version}")), version)
        step = 1 + len(wire) // TRUNCATIONS_MAX
        for cut in range(0, len(wire), step):
            with pytest.raises(KafkaWireError):
                decode_as(message_class, version, wire[:cut])


@pytest.mark.parametrize("message_class", message_classes(), ids=lambda one: one.__name__)
def test_mutated_bytes_decode_or_are_a_wire_error(
    message_class: type[Message], make_message: MakeMessage
) -> None:
    for version in versions(message_class):
        rng = random.Random(f"mutate {version}")
        wire = bytearray(encode(make_message(message_class, version, rng), version)) or bytearray(1)
        for _ in range(MUTATIONS):
            mutated = bytearray(wire)
            for _ in range(rng.randrange(1, 4)):
                mutated[rng.randrange(len(mutated))] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                )
            try:
                decode_as(message_class, version, mutated)
            except KafkaWireError:
                continue


@settings(max_examples=300, deadline=None)
@given(
    key=st.sampled_from(sorted(APIS)),
    data=st.binary(max_size=300),
    response=st.booleans(),
    offset=st.integers(min_value=0, max_value=40),
)
def test_arbitrary_bytes_decode_or_are_a_wire_error(
    key: int, data: bytes, response: bool, offset: int
) -> None:
    api = APIS[key]
    version = api.version_min + offset % (api.version_max - api.version_min + 1)
    try:
        (decode_response if response else decode)(key, version, data)
    except KafkaWireError:
        return


@settings(max_examples=200, deadline=None)
@given(
    names=st.none()
    | st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.none() | st.text(max_size=400))),
    create=st.booleans(),
    operations=st.booleans(),
)
def test_any_metadata_request_round_trips(
    names: list[tuple[bytes, str | None]] | None, create: bool, operations: bool
) -> None:
    topics = None if names is None else [MetadataRequestTopic(topic_id, name) for topic_id, name in names]
    request = MetadataRequest(topics, create, include_topic_authorized_operations=operations)
    try:
        wire = encode(request, 12)
    except KafkaEncodeError:  # surrogates have no UTF-8 encoding
        assert any(0xD800 <= ord(letter) <= 0xDFFF for _, name in names or () for letter in name or "")
        return
    assert decode(ApiKey.METADATA, 12, wire) == (request, len(wire))


class TestHostileLengths:
    """Hostile sizes and counts in a few bytes never cause large allocations."""

    CLAIMS = (
        (ApiKey.METADATA, 1, "7fffffff"),  # 2^31-1 topics
        (ApiKey.METADATA, 12, "ffffffff07"),  # the same in compact form
        (ApiKey.METADATA, 12, "ffffffffff"),  # a varint that does not end
        (ApiKey.METADATA, 12, "ffffffff7f"),  # a varint of 35 bits
        (ApiKey.HEARTBEAT, 0, "7fff61"),  # a string of 32767 bytes
        (ApiKey.HEARTBEAT, 4, "ffffffff0761"),  # a string of 2^31-2 bytes
        (ApiKey.HEARTBEAT, 0, "ffff"),  # null in place of a required string
        (ApiKey.HEARTBEAT, 4, "00"),  # the same in compact form
        (ApiKey.SASL_AUTHENTICATE, 1, "7fffffff00"),  # bytes
        (ApiKey.SASL_AUTHENTICATE, 1, "80000000"),  # bytes of negative length
        (ApiKey.FETCH, 4, "ffffffff 00000001 00000001 00000001 00 7fffffff"),
        (ApiKey.DELETE_TOPICS, 1, "80000000"),  # a negative count where null is not allowed
    )

    @pytest.mark.parametrize(("key", "version", "claim"), CLAIMS)
    def test_hostile_size_is_refused_before_an_allocation(self, key: int, version: int, claim: str) -> None:
        wire = bytes.fromhex(claim)
        tracemalloc.start()
        try:
            with pytest.raises(KafkaWireError):
                decode(key, version, wire)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()

    def test_string_that_is_not_utf_8_is_refused(self) -> None:
        wire = bytearray(encode(HeartbeatRequest("group"), 4))
        wire[1] = 0xFF
        with pytest.raises(KafkaWireError, match="UTF-8"):
            decode(ApiKey.HEARTBEAT, 4, wire)

    def test_unknown_keys_and_versions_are_wire_errors(self) -> None:
        with pytest.raises(KafkaWireError, match="999"):
            decode(999, 0, b"")
        with pytest.raises(KafkaWireError, match="52"):
            decode(52, 0, b"")
        with pytest.raises(KafkaWireError, match="only 3 to 13"):
            decode(ApiKey.PRODUCE, 2, b"")


class TestTaggedFields:
    """KIP-482: unknown tags are skipped by size; tagged fields with their default are not encoded."""

    def test_unknown_tag_is_skipped(self) -> None:
        wire = encode(HeartbeatRequest("g", 1, "m"), 4)
        assert wire[-1] == 0
        extended = wire[:-1] + bytes((2, 0, 3)) + b"abc" + bytes((0x85, 0x01, 1)) + b"z"

        assert decode(ApiKey.HEARTBEAT, 4, extended) == (HeartbeatRequest("g", 1, "m"), len(extended))

    def test_unknown_tag_among_known_ones_is_skipped(self) -> None:
        request = FetchRequest(cluster_id="c", max_bytes=1)
        wire = encode(request, 12)
        known = bytes((1, 0, 2, 2)) + b"c"
        assert wire.endswith(known)
        extended = wire[: -len(known)] + bytes((2,)) + known[1:] + bytes((9, 1, 7))

        assert decode(ApiKey.FETCH, 12, extended) == (request, len(extended))

    def test_known_tag_with_wrong_size_is_refused(self) -> None:
        wire = encode(FetchRequest(cluster_id="c"), 12)
        wrong = wire[:-3] + bytes((3, 2)) + b"c" + b"x"

        with pytest.raises(KafkaWireError, match="cluster_id"):
            decode(ApiKey.FETCH, 12, wrong)

    def test_tag_past_the_end_is_refused(self) -> None:
        wire = encode(HeartbeatRequest("g"), 4)
        with pytest.raises(KafkaWireError):
            decode(ApiKey.HEARTBEAT, 4, wire[:-1] + bytes((1, 0, 127)))


class TestWhatAVersionCannotCarry:
    def test_ignorable_field_is_dropped(self) -> None:
        wire = encode(ApiVersionsRequest("client", "1.0"), 0)
        assert wire == b""

    def test_field_that_is_not_ignorable_is_an_error_that_names_it(self) -> None:
        with pytest.raises(
            KafkaEncodeError, match=r"HeartbeatRequest version 2: HeartbeatRequest.group_instance_id"
        ):
            encode(HeartbeatRequest("g", 1, "m", "instance"), 2)

    def test_default_of_such_a_field_is_accepted(self) -> None:
        assert encode(HeartbeatRequest("g", 1, "m"), 2)

    def test_null_is_an_error_in_a_version_without_null(self) -> None:
        assert encode(MetadataRequest(None), 1)
        with pytest.raises(KafkaEncodeError, match="MetadataRequest version 0"):
            encode(MetadataRequest(None), 0)

    def test_number_out_of_range_is_an_error(self) -> None:
        with pytest.raises(KafkaEncodeError):
            encode(HeartbeatRequest("g", 1 << 31, "m"), 2)

    def test_string_beyond_32767_bytes_is_an_error_in_both_forms(self) -> None:
        for version in (3, 4):
            assert encode(HeartbeatRequest("g" * 32767), version)
            with pytest.raises(KafkaEncodeError):
                encode(HeartbeatRequest("g" * 32768), version)

    def test_unknown_version_is_an_error(self) -> None:
        with pytest.raises(KafkaEncodeError, match="only 2 to 7"):
            encode(CreateTopicsRequest(), 8)


class TestValues:
    def test_records_are_slices_of_the_frame_and_are_encoded_without_copies(self) -> None:
        frame = bytearray(encode(_produce(b"0123456789"), 9))
        request, _ = decode(ApiKey.PRODUCE, 9, memoryview(frame))
        assert isinstance(request, ProduceRequest)
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        records[0] = ord("X")
        assert b"X123456789" in frame
        assert any(one is records for one in encode_buffers(request, 9))

    def test_records_may_be_a_list_of_buffers(self) -> None:
        assert encode(_produce([b"01", memoryview(b"23"), bytearray(b"4")]), 9) == encode(
            _produce(b"01234"), 9
        )

    def test_defaults_follow_the_protocol(self) -> None:
        assert MetadataResponse().controller_id == -1
        assert MetadataRequest().allow_auto_topic_creation
        assert FetchRequest().max_bytes == 0x7FFFFFFF
        assert OffsetCommitRequest().generation_id_or_member_epoch == -1

    def test_equality_and_repr_use_the_fields(self) -> None:
        assert MetadataRequest([]) == MetadataRequest(())
        assert MetadataRequest([MetadataRequestTopic(name="a")]) != MetadataRequest(
            [MetadataRequestTopic(name="b")]
        )
        assert MetadataRequest() != HeartbeatRequest()
        assert repr(HeartbeatRequest("g")).startswith("HeartbeatRequest(group_id='g', generation_id=0")
        assert issubclass(MetadataRequestTopic, Struct)


def _produce(records: bytes | list[bytes | memoryview | bytearray]) -> ProduceRequest:
    return ProduceRequest(
        None, -1, 1000, [TopicProduceData("t", partition_data=[PartitionProduceData(0, records)])]
    )
