"""The fast paths of Produce and Fetch agree with the generic codec in every version."""

import random
from collections.abc import Callable

import pytest
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode, decode_as, encode
from ponor_kafka.errors import KafkaEncodeError, KafkaWireError
from ponor_kafka.fetch_response import FetchedPartition, FetchNodeEndpoint, build_fetch_response
from ponor_kafka.fetch_walk import TopicKey
from ponor_kafka.message import ZERO_UUID, Message
from ponor_kafka.messages import fetch
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.produce_walk import (
    PARTITIONS_MAX,
    TOPIC_ID_MIN,
    Partition,
    ProduceWalk,
    walk_one_partition,
    walk_produce,
)

MakeMessage = Callable[[type[Message], int, random.Random], Message]
PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)


def flattened(request: Message) -> ProduceWalk:
    """Convert a generically decoded request to the expected fast path result."""
    assert isinstance(request, ProduceRequest)
    partitions: list[Partition] = []
    for topic in request.topic_data:
        for one in topic.partition_data:
            assert one.records is None or isinstance(one.records, memoryview)
            partitions.append((topic.name, topic.topic_id, one.index, one.records))
    return ProduceWalk(request.transactional_id, request.acks, request.timeout_ms, partitions)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_walk_equals_the_codec(version: int, make_message: MakeMessage) -> None:
    for seed in range(30):
        wire = encode(make_message(ProduceRequest, version, random.Random(f"walk {version} {seed}")), version)
        frame = memoryview(bytearray(b"header" + wire + b"behind"))
        request, end = decode(ApiKey.PRODUCE, version, frame, 6)

        assert walk_produce(version, frame, 6) == (flattened(request), end)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_walk_and_codec_refuse_the_same_bytes(version: int, make_message: MakeMessage) -> None:
    rng = random.Random(f"hostile {version}")
    for _ in range(20):
        wire = encode(make_message(ProduceRequest, version, rng), version)
        for _ in range(40):
            mutated = bytearray(wire)
            for _ in range(rng.randrange(1, 3)):
                mutated[rng.randrange(len(mutated))] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                )
            frame = memoryview(mutated)[: rng.choice((len(mutated), rng.randrange(len(mutated) + 1)))]
            try:
                request, end = decode(ApiKey.PRODUCE, version, frame)
            except KafkaWireError:
                with pytest.raises(KafkaWireError):
                    walk_produce(version, frame, 0)
            else:
                assert walk_produce(version, frame, 0) == (flattened(request), end)


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("topics", [1, 2])
def test_walk_refuses_more_partitions_than_the_bound(version: int, topics: int) -> None:
    one = PartitionProduceData(index=0, records=None)
    named = TopicProduceData(name="t", partition_data=[one] * (PARTITIONS_MAX // topics))
    allowed = encode(ProduceRequest(topic_data=[named] * topics), version)
    walk, _ = walk_produce(version, memoryview(allowed), 0)
    assert len(walk.partitions) == PARTITIONS_MAX
    last = TopicProduceData(name="u", partition_data=[one])
    refused = encode(ProduceRequest(topic_data=[*[named] * topics, last]), version)
    with pytest.raises(KafkaWireError, match="send at most 100000"):
        walk_produce(version, memoryview(refused), 0)


def one_partition(version: int, records: bytes | None = b"records", name: str = "topic") -> ProduceRequest:
    topic = TopicProduceData(partition_data=[PartitionProduceData(3, records)])
    if version < TOPIC_ID_MIN:
        topic.name = name
    else:
        topic.topic_id = bytes(range(16))
    return ProduceRequest(None, -1, 1000, [topic])


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_382, 16_383, 100_000])
def test_usual_shape_takes_the_short_path(version: int, size: int) -> None:
    frame = bytearray(b"header" + encode(one_partition(version, bytes(size)), version))
    short = walk_one_partition(version, frame, 6)
    walk, end = walk_produce(version, memoryview(frame), 6)
    ((name, topic_id, index, records),) = walk.partitions
    topic = topic_id if version >= TOPIC_ID_MIN else name
    assert short == (walk.acks, walk.timeout_ms, topic, index, records)
    assert end == len(frame)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_every_other_shape_is_left_to_the_general_path(version: int) -> None:
    usual = one_partition(version)
    twice = ProduceRequest(None, -1, 1000, [*usual.topic_data, *usual.topic_data])
    two = one_partition(version)
    two.topic_data[0].partition_data = [PartitionProduceData(index, b"r") for index in range(2)]
    others = [twice, two, ProduceRequest(None, -1, 1000, []), one_partition(version, None)]
    others.append(ProduceRequest("transaction", -1, 1000, usual.topic_data))
    for request in others:
        assert walk_one_partition(version, bytearray(encode(request, version)), 0) is None
    assert walk_one_partition(version, bytearray(encode(usual, version) + b"behind"), 0) is None
    assert walk_one_partition(version, bytearray(encode(usual, version)), 0) is not None


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_short_path_agrees_with_the_general_path(version: int) -> None:
    rng = random.Random(f"short {version}")
    wire = encode(one_partition(version, bytes(range(200))), version)
    for _ in range(3000):
        mutated = bytearray(wire[: rng.choice((len(wire), rng.randrange(len(wire) + 1)))])
        for _ in range(rng.randrange(1, 4)):
            if mutated:
                at = rng.choice((rng.randrange(len(mutated)), rng.randrange(min(40, len(mutated)))))
                mutated[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        short = walk_one_partition(version, mutated, 0)
        if short is not None:
            walk, end = walk_produce(version, memoryview(mutated), 0)
            ((name, topic_id, index, records),) = walk.partitions
            topic = topic_id if version >= TOPIC_ID_MIN else name
            assert short == (walk.acks, walk.timeout_ms, topic, index, records)
            assert walk.transactional_id is None
            assert end == len(mutated)


def test_records_of_a_walk_can_be_stamped_in_place() -> None:
    topics = [TopicProduceData("t", partition_data=[PartitionProduceData(0, b"0123456789")])]
    frame = bytearray(encode(ProduceRequest(None, -1, 1000, topics), 9))
    walk, _ = walk_produce(9, memoryview(frame), 0)
    ((_, _, _, records),) = walk.partitions
    assert records is not None
    records[:4] = b"WXYZ"
    assert b"WXYZ456789" in frame


@pytest.mark.parametrize("version", [-1, 2, 14])
def test_walk_refuses_unknown_versions(version: int) -> None:
    with pytest.raises(KafkaWireError):
        walk_produce(version, memoryview(b""), 0)


def random_partition(rng: random.Random, topic: TopicKey) -> FetchedPartition:
    partition = FetchedPartition(topic, rng.randrange(1000))
    partition.error_code = rng.choice((0, 6, 74))
    partition.high_watermark = rng.randrange(1 << 40)
    partition.last_stable_offset = rng.randrange(1 << 40)
    partition.log_start_offset = rng.randrange(1 << 40)
    partition.aborted_transactions = rng.choice(
        (None, [], [(7, 100), (8, 200)], [(n, n) for n in range(200)])
    )
    partition.preferred_read_replica = rng.choice((-1, 3))
    partition.diverging_epoch = rng.choice((None, (4, 900)))
    partition.current_leader = rng.choice((None, (2, 5)))
    partition.take([rng.randbytes(rng.choice((0, 1, 100, 127, 3000))) for _ in range(rng.randrange(4))])
    return partition


def generic_partition(partition: FetchedPartition, version: int) -> fetch.PartitionData:
    diverging, leader = partition.diverging_epoch, partition.current_leader
    aborted = partition.aborted_transactions
    return fetch.PartitionData(
        partition.index,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
        fetch.EpochEndOffset(*diverging) if diverging and version >= 12 else None,
        fetch.LeaderIdAndEpoch(*leader) if leader and version >= 12 else None,
        None,
        None if aborted is None else [fetch.AbortedTransaction(*one) for one in aborted],
        partition.preferred_read_replica if version >= 11 else -1,
        list(partition.records),
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_response_equals_the_codec(version: int) -> None:
    for seed in range(30):
        rng = random.Random(f"fetch {version} {seed}")
        topics: list[list[FetchedPartition]] = []
        for number in range(rng.randrange(3)):
            topic: TopicKey = (
                rng.randbytes(16) if version >= 13 else rng.choice(("orders", "ü" * 100)) + str(number)
            )
            topics.append([random_partition(rng, topic) for _ in range(rng.choice((1, 3, 130)))])
        endpoints = rng.choice(
            ([], [FetchNodeEndpoint(2, "host", 9092), FetchNodeEndpoint(3, "h" * 200, 1, "rack")])
        )
        buffers = build_fetch_response(
            version,
            [one for topic in topics for one in topic],
            throttle_time_ms=5,
            error_code=0,
            session_id=9,
            node_endpoints=endpoints,
        )
        generic = fetch.FetchResponse(
            5,
            0,
            9 if version >= 7 else 0,
            [
                fetch.FetchableTopicResponse(
                    key if isinstance(key := topic[0].topic, str) else "",
                    key if isinstance(key, bytes) else ZERO_UUID,
                    [generic_partition(one, version) for one in topic],
                )
                for topic in topics
            ],
            [fetch.NodeEndpoint(one.node_id, one.host, one.port, one.rack) for one in endpoints]
            if version >= 16
            else (),
        )
        assert b"".join(buffers) == encode(generic, version)


def test_record_data_is_not_copied() -> None:
    cached = memoryview(bytearray(100_000))
    partition = FetchedPartition(bytes(16), 0)
    partition.take([cached, cached[:10]])
    buffers = build_fetch_response(13, [partition])

    assert sum(one is cached for one in buffers) == 1
    assert len(buffers) == 4


@pytest.mark.parametrize("version", [3, 19])
def test_fetch_response_refuses_unknown_versions(version: int) -> None:
    with pytest.raises(KafkaEncodeError):
        build_fetch_response(version, [])


def test_recurring_topic_has_another_entry() -> None:
    partitions = [
        FetchedPartition("a", 0),
        FetchedPartition("a", 1),
        FetchedPartition("b", 0),
        FetchedPartition("a", 2),
    ]
    body = b"".join(build_fetch_response(12, partitions))
    response, _ = decode_as(fetch.FetchResponse, 12, body)
    found = [(topic.topic, [one.partition_index for one in topic.partitions]) for topic in response.responses]
    assert found == [("a", [0, 1]), ("b", [0]), ("a", [2])]
