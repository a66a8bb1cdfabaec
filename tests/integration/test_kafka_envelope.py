"""Raw frames to a broker: framing rules as measured on Apache Kafka 4.3.1, and hostile bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ponor_kafka.codec import decode_response, encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.message import Message
from ponor_kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ponor_kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest
from ponor_kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.record_builder import build_batch

from tests.integration.cluster_in_process import RunningCluster, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("envelope"), {"request_stall_ms_max": "2000"}) as running:
        yield running


@pytest.fixture
def client(cluster: RunningCluster) -> Iterator[RawClient]:
    with RawClient(cluster.port) as raw:
        yield raw


class RawClient:
    """A socket with Kafka's framing."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=240)
        self.correlation = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def receive(self) -> bytes | None:
        """The next frame, None if the broker closed the connection."""
        head = self._exactly(4)
        return None if head is None else self._exactly(int.from_bytes(head, "big"))

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionError:
                return None
            if not part:
                return None
            data += part
        return data

    def call(self, request: Message, version: int) -> Message:
        key = request.API_KEY
        self.correlation += 1
        self.send(encode_request_header(key, version, self.correlation, "raw") + encode(request, version))
        return self.response(key, version)

    def response(self, key: int, version: int) -> Message:
        frame = self.receive()
        assert frame is not None, "the broker closed the connection"
        correlation, position = decode_response_header(key, version, frame)
        assert correlation == self.correlation
        response, end = decode_response(key, version, frame, position)
        assert end == len(frame)
        return response

    def is_closed(self) -> bool:
        return self.receive() is None


def api_versions(version: int = 3, name: str = "raw", software: str = "1.0") -> ApiVersionsRequest:
    return (
        ApiVersionsRequest(client_software_name=name, client_software_version=software)
        if version >= 3
        else ApiVersionsRequest()
    )


@pytest.mark.parametrize("version", range(6))
def test_api_versions_lists_the_supported_apis(client: RawClient, version: int) -> None:
    response = client.call(api_versions(version), version)
    assert isinstance(response, ApiVersionsResponse)
    assert response.error_code == 0
    ranges = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
    # Produce 0 to 2 are listed and refused, because librdkafka derives its codecs from them
    assert ranges[0] == (0, 13)
    assert ranges[1] == (4, 18)
    assert ranges[18] == (0, 5)
    assert (ranges[68], ranges[69]) == ((0, 1), (0, 1))
    assert (ranges[76], ranges[77], ranges[78], ranges[79]) == ((1, 1), (1, 1), (1, 2), (1, 2))
    assert (ranges[88], ranges[89]) == ((0, 1), (0, 0))
    # Clients would use Kafka's other features, whose APIs are missing.
    groups = ["group.version", "share.version", "streams.version"]
    shown = ["ponor.metadata.level", *groups, "transaction.version"] if version >= 3 else []
    assert [row.name for row in response.finalized_features] == shown
    supported = {row.name: (row.min_version, row.max_version) for row in response.supported_features}
    assert supported.get("transaction.version") == ((0, 2) if version >= 4 else None)
    assert supported.get("group.version") == ((0, 1) if version >= 4 else None)
    assert supported.get("share.version") == ((0, 1) if version >= 4 else None)


@pytest.mark.parametrize("version", [6, 99, 32767])
def test_a_too_high_api_versions_is_answered_in_version_0_with_our_range(
    client: RawClient, version: int
) -> None:
    client.send(struct.pack(">hhih", 18, version, 77, -1) + b"\x00")
    assert client.receive() == struct.pack(">ihihhh", 77, 35, 1, 18, 0, 5)
    assert isinstance(client.call(api_versions(), 3), ApiVersionsResponse)  # and the connection stays open


@pytest.mark.parametrize(("name", "software"), [("bad name", "1"), ("", "1"), ("-x", "1"), ("ok", "1_0")])
def test_an_invalid_client_name_is_refused_and_the_connection_stays_open(
    client: RawClient, name: str, software: str
) -> None:
    assert client.call(api_versions(3, name, software), 3).error_code == ErrorCode.INVALID_REQUEST  # type: ignore[attr-defined]
    assert client.call(api_versions(), 3).error_code == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("key", "version"),
    [(0, 2), (0, 14), (1, 3), (1, 19), (3, 14), (52, 0), (999, 0), (-1, 0), (24, 3), (4, 0), (22, 6)],
)
def test_an_unsupported_request_closes_the_connection_without_an_answer(
    client: RawClient, key: int, version: int
) -> None:
    client.send(struct.pack(">hhih", key, version, 1, -1) + b"\x00" * 20)
    assert client.is_closed()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\x00\x03\x00\x00\x00\x00\x00\x01\x00\x50abc",
        b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xff\x01\x00\x7f",
    ],
)
def test_malformed_headers_close_only_their_connection(
    client: RawClient, cluster: RunningCluster, frame: bytes
) -> None:
    client.send(frame)
    assert client.is_closed()
    with RawClient(cluster.port) as other:
        assert other.call(api_versions(), 3).error_code == 0  # type: ignore[attr-defined]


KEYS = st.sampled_from([0, 1, 2, 3, 8, 9, 10, 11, 18, 19, 20, 22, 23, 60])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KEYS, st.integers(0, 13), st.binary(max_size=120))
def test_any_body_is_answered_or_closes_the_connection(
    cluster: RunningCluster, key: int, version: int, body: bytes
) -> None:
    with RawClient(cluster.port) as hostile:
        hostile.send(struct.pack(">hhih", key, version, 1, -1) + b"\x00" + body)
        hostile.socket.shutdown(socket.SHUT_WR)
        hostile.receive()
    with RawClient(cluster.port) as other:
        assert other.call(api_versions(), 3).error_code == 0  # type: ignore[attr-defined]


def test_half_a_request_is_dropped_after_its_stall_timeout(client: RawClient) -> None:
    client.socket.sendall((1000).to_bytes(4, "big") + b"half")
    assert client.is_closed()


def test_answers_are_in_request_order_though_produces_overlap(
    client: RawClient, cluster: RunningCluster
) -> None:
    make_topic(cluster, "ordered")
    for number in range(1, 21):
        body = encode(produce_of("ordered", build_batch([(1, b"k", b"%d" % number)])), 9)
        client.send(encode_request_header(0, 9, number, "raw") + body)
    client.send(encode_request_header(18, 3, 21, "raw") + encode(api_versions(), 3))
    offsets = []
    for number in range(1, 21):
        client.correlation = number
        offsets.append(client.response(0, 9).responses[0].partition_responses[0].base_offset)  # type: ignore[attr-defined]
    assert offsets == list(range(20))
    client.correlation = 21
    assert client.response(18, 3).error_code == 0  # type: ignore[attr-defined]


def test_acks_0_has_no_answer_and_an_error_closes_the_connection(
    client: RawClient, cluster: RunningCluster
) -> None:
    make_topic(cluster, "unacknowledged")
    good = encode(produce_of("unacknowledged", build_batch([(1, b"k", b"v")]), acks=0), 9)
    client.send(encode_request_header(0, 9, 1, "raw") + good)
    assert client.call(api_versions(), 3).error_code == 0  # type: ignore[attr-defined]
    bad = encode(produce_of("no-such-topic-here", build_batch([(1, b"k", b"v")]), acks=0), 9)
    client.send(encode_request_header(0, 9, 2, "raw") + bad)
    assert client.is_closed()


def test_refused_batches_change_nothing(client: RawClient, cluster: RunningCluster) -> None:
    make_topic(cluster, "refusals")
    torn = build_batch([(1, b"k", b"v")])
    torn[-1] ^= 0xFF
    cases = [
        (bytes(torn), -1, ErrorCode.CORRUPT_MESSAGE),
        (b"", -1, ErrorCode.INVALID_RECORD),
        (bytes(build_batch([(1, b"k", b"v")]) * 2), -1, ErrorCode.INVALID_RECORD),
        (bytes(build_batch([(1, b"k", b"v")])), 2, ErrorCode.INVALID_REQUIRED_ACKS),
        (
            bytes(
                build_batch(
                    [(1, b"k", b"v")], transactional=True, producer_id=1, producer_epoch=0, base_sequence=0
                )
            ),
            -1,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ]
    for records, acks, code in cases:
        response = client.call(produce_of("refusals", records, acks=acks), 9)
        assert response.responses[0].partition_responses[0].error_code == code  # type: ignore[attr-defined]
    response = client.call(produce_of("refusals", bytes(build_batch([(1, b"k", b"v")]))), 9)
    assert response.responses[0].partition_responses[0].base_offset == 0  # type: ignore[attr-defined]


def test_fetch_follows_kafka_s_size_and_offset_rules(client: RawClient, cluster: RunningCluster) -> None:
    make_topic(cluster, "sizes")
    for number in range(3):
        client.call(produce_of("sizes", build_batch([(1, b"k", bytes(1000))] * 10)), 9)
        assert number < 3
    one_batch = len(fetch(client, "sizes", 0, partition_bytes=1))
    assert 10_000 < one_batch < 11_000  # the whole first batch for any limit
    assert fetch(client, "sizes", 14, partition_bytes=1)[:8] == (10).to_bytes(
        8, "big"
    )  # the batch that contains the offset
    assert len(fetch(client, "sizes", 0, partition_bytes=1 << 20)) == 3 * one_batch
    assert len(fetch(client, "sizes", 0, max_bytes=2 * one_batch + 200)) == 2 * one_batch
    assert fetch(client, "sizes", 30) == b""
    for offset in (31, -1):
        fetch(client, "sizes", offset, error=ErrorCode.OFFSET_OUT_OF_RANGE)
    fetch(client, "sizes", 0, epoch=7, error=ErrorCode.UNKNOWN_LEADER_EPOCH)
    fetch(client, "missing", 0, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    session = client.call(FetchRequest(session_id=5, session_epoch=1), 12)
    assert session.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND  # type: ignore[attr-defined]


def test_a_parked_fetch_is_answered_after_the_append_that_it_waits_for(
    client: RawClient, cluster: RunningCluster
) -> None:
    make_topic(cluster, "woken")
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=60_000, min_bytes=200, topics=[FetchTopic(topic="woken", partitions=[wanted])]
    )
    client.correlation += 1
    client.send(encode_request_header(1, 12, client.correlation, "raw") + encode(request, 12))
    with RawClient(cluster.port) as producer:
        for _ in range(3):
            producer.call(produce_of("woken", build_batch([(1, b"k", b"v" * 30)])), 9)
    answer = client.response(1, 12)
    assert len(answer.responses[0].partitions[0].records) >= 200  # type: ignore[attr-defined]


def test_read_committed_gets_a_list_and_read_uncommitted_null(
    client: RawClient, cluster: RunningCluster
) -> None:
    make_topic(cluster, "isolation")
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    for isolation, expected in ((1, []), (0, None)):
        request = FetchRequest(
            isolation_level=isolation, topics=[FetchTopic(topic="isolation", partitions=[wanted])]
        )
        answer = client.call(request, 12).responses[0].partitions[0]  # type: ignore[attr-defined]
        aborted = answer.aborted_transactions
        assert (None if aborted is None else list(aborted)) == expected
        assert answer.last_stable_offset == answer.high_watermark


@pytest.mark.parametrize(
    ("timestamp", "version", "expected"),
    [
        (-1, 11, (0, 3)),
        (-2, 11, (0, 0)),
        (-3, 11, (0, 2)),
        (-3, 6, (35, -1)),
        (-4, 11, (0, 0)),
        (-4, 7, (35, -1)),
        (-5, 11, (0, -1)),
        (-5, 7, (35, -1)),
        (-6, 11, (0, -1)),
        (-6, 10, (35, -1)),
        (-7, 11, (35, -1)),
        (1_000, 1, (0, 0)),
        (1_011, 11, (0, 2)),
        (9_999, 11, (0, -1)),
    ],
)
def test_list_offsets_gives_the_measured_answers(
    client: RawClient, cluster: RunningCluster, timestamp: int, version: int, expected: tuple[int, int]
) -> None:
    if make_topic(cluster, "table"):
        client.call(produce_of("table", build_batch([(1_000 + 10 * n, b"k", b"v") for n in range(3)])), 9)
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic("table", [wanted])])
    row = client.call(request, version).topics[0].partitions[0]  # type: ignore[attr-defined]
    assert (row.error_code, row.offset) == expected


def test_producer_ids_are_unique_and_timeouts_of_transactions_are_bounded(client: RawClient) -> None:
    ids = [client.call(InitProducerIdRequest(transactional_id=None), 4).producer_id for _ in range(3)]  # type: ignore[attr-defined]
    assert len(set(ids)) == 3
    refused = client.call(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=900_001), 4)
    assert refused.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT  # type: ignore[attr-defined]


def test_metadata_names_unknown_and_invalid_topics(client: RawClient) -> None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="nowhere"), MetadataRequestTopic(name="a b")],
        allow_auto_topic_creation=False,
    )
    rows = client.call(request, 9).topics  # type: ignore[attr-defined]
    assert [row.error_code for row in rows] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=bytes(range(16)), name=None)])
    # Versions 10 and 11 have the field only in responses.
    for version, code in (
        (10, ErrorCode.INVALID_REQUEST),
        (12, ErrorCode.UNKNOWN_TOPIC_ID),
        (13, ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        assert client.call(by_id, version).topics[0].error_code == code  # type: ignore[attr-defined]
    everything = client.call(MetadataRequest(topics=None), 12)
    assert everything.cluster_id  # type: ignore[attr-defined]
    assert everything.brokers[0].node_id == everything.controller_id  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", range(14))
def test_metadata_supports_every_version(client: RawClient, version: int) -> None:
    topics: list[MetadataRequestTopic] | None = [] if version == 0 else None
    assert client.call(MetadataRequest(topics=topics), version).brokers  # type: ignore[attr-defined]


def test_topics_are_deleted_by_id_and_unknown_ones_are_named(
    client: RawClient, cluster: RunningCluster
) -> None:
    make_topic(cluster, "by-id")
    (row,) = client.call(MetadataRequest(topics=[MetadataRequestTopic(name="by-id")]), 12).topics  # type: ignore[attr-defined]
    request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=row.topic_id)], timeout_ms=60_000)
    codes = [client.call(request, 6).responses[0].error_code for _ in range(2)]  # type: ignore[attr-defined]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_ID]


def produce_of(topic: str, records: bytes | bytearray, *, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=memoryview(bytes(records)))
    return ProduceRequest(
        acks=acks, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch(
    client: RawClient,
    topic: str,
    offset: int,
    *,
    partition_bytes: int = 1 << 20,
    max_bytes: int = 1 << 24,
    epoch: int = -1,
    error: ErrorCode = ErrorCode.NONE,
) -> bytes:
    wanted = FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=partition_bytes, current_leader_epoch=epoch
    )
    request = FetchRequest(
        max_wait_ms=0, max_bytes=max_bytes, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    )
    answer = client.call(request, 12).responses[0].partitions[0]  # type: ignore[attr-defined]
    assert answer.error_code == error
    return bytes(answer.records or b"")


def make_topic(cluster: RunningCluster, name: str) -> bool:
    """Create a topic of one partition and wait until it serves; return False if it existed."""
    with RawClient(cluster.port) as client:
        made = False
        while True:
            (row,) = client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 9).topics  # type: ignore[attr-defined]
            if row.error_code == 0:
                wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
                request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name, [wanted])])
                if client.call(request, 5).topics[0].partitions[0].error_code == 0:  # type: ignore[attr-defined]
                    return made
            else:
                made = True
