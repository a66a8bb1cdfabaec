"""The fast path of Fetch requests accepts and refuses the same input as the generic codec."""

import random
from collections.abc import Callable

import pytest
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode, encode
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.fetch_walk import FINAL_EPOCH, FetchWalk, TopicKey, walk_fetch
from ponor_kafka.message import Message
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

MakeMessage = Callable[[type[Message], int, random.Random], Message]
VERSIONS = range(4, 19)
PARTITIONS_MAX = 100_000


def flattened(request: Message, version: int) -> FetchWalk:
    """Convert a generically decoded request to the expected fast path result."""
    assert isinstance(request, FetchRequest)

    def key(topic: FetchTopic | ForgottenTopic) -> TopicKey:
        return topic.topic_id if version >= 13 else topic.topic

    return FetchWalk(
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id if version >= 7 else 0,
        request.session_epoch if version >= 7 else FINAL_EPOCH,
        [
            (
                key(topic),
                [
                    (
                        one.partition,
                        one.current_leader_epoch,
                        one.fetch_offset,
                        one.last_fetched_epoch,
                        one.partition_max_bytes,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        [(key(topic), list(topic.partitions)) for topic in request.forgotten_topics_data],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_walk_equals_the_codec(version: int, make_message: MakeMessage) -> None:
    for seed in range(30):
        wire = encode(make_message(FetchRequest, version, random.Random(f"walk {version} {seed}")), version)
        frame = bytearray(b"header" + wire + b"behind")
        request, end = decode(ApiKey.FETCH, version, frame, 6)

        assert walk_fetch(version, frame, 6, partitions_max=PARTITIONS_MAX) == (
            flattened(request, version),
            end,
        )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [0, 1, 2, 126, 127, 128, 1000])
def test_usual_request_is_parsed_like_any_other(version: int, count: int) -> None:
    rows = [
        FetchPartition(n, n % 5 - 1, n << 33, n % 3 - 1 if version >= 12 else -1, -1, 1 << 20)
        for n in range(count)
    ]
    topics = [
        FetchTopic("orders" if version < 13 else "", bytes(range(16)) if version >= 13 else bytes(16), rows)
    ]
    request = FetchRequest(
        None, -1, max_wait_ms=500, min_bytes=1, max_bytes=7, session_id=9, session_epoch=3, topics=topics
    )
    frame = bytearray(encode(request, version))
    decoded, end = decode(ApiKey.FETCH, version, frame)
    assert walk_fetch(version, frame, 0, partitions_max=PARTITIONS_MAX) == (flattened(decoded, version), end)


@pytest.mark.parametrize("version", VERSIONS)
def test_walk_and_codec_refuse_the_same_bytes(version: int, make_message: MakeMessage) -> None:
    """The walk accepts more only if the contents of a tagged field are malformed, because it skips them."""
    rng = random.Random(f"hostile {version}")
    for _ in range(20):
        wire = encode(make_message(FetchRequest, version, rng), version)
        for _ in range(40):
            mutated = bytearray(wire)
            for _ in range(rng.randrange(1, 3)):
                mutated[rng.randrange(len(mutated))] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                )
            frame = mutated[: rng.choice((len(mutated), rng.randrange(len(mutated) + 1)))]
            try:
                request, end = decode(ApiKey.FETCH, version, frame)
            except KafkaWireError:
                if version < 12:
                    with pytest.raises(KafkaWireError):
                        walk_fetch(version, frame, 0, partitions_max=PARTITIONS_MAX)
                else:
                    _walk_or_refuse(version, frame)
            else:
                assert walk_fetch(version, frame, 0, partitions_max=PARTITIONS_MAX) == (
                    flattened(request, version),
                    end,
                )


def _walk_or_refuse(version: int, frame: bytearray) -> None:
    """Arbitrary bytes raise no other exception and cause no result larger than the frame."""
    try:
        walk, end = walk_fetch(version, frame, 0, partitions_max=PARTITIONS_MAX)
    except KafkaWireError:
        return
    assert end <= len(frame)
    assert sum(len(rows) for _, rows in walk.topics) <= len(frame) // 16


@pytest.mark.parametrize("version", VERSIONS)
def test_number_of_partitions_is_bounded(version: int) -> None:
    rows = [FetchPartition(n) for n in range(11)]
    topics = [FetchTopic("a" if version < 13 else "", partitions=rows)]
    frame = bytearray(encode(FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics), version))
    walk_fetch(version, frame, 0, partitions_max=11)
    with pytest.raises(KafkaWireError, match="more than 10 partitions"):
        walk_fetch(version, frame, 0, partitions_max=10)


@pytest.mark.parametrize("version", [-1, 3, 19])
def test_walk_refuses_unknown_versions(version: int) -> None:
    with pytest.raises(KafkaWireError):
        walk_fetch(version, b"", 0, partitions_max=1)
