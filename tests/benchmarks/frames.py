"""Prebuilt requests of the load: Produce, Fetch, Metadata, and creation and deletion of topics on
any Kafka-compatible system.

Encoded with our own codec, in versions that every system supports.
"""

from __future__ import annotations

import time
from typing import Final, TypeVar

from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode_as, encode
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.message import Message
from ponor_kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ponor_kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ponor_kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ponor_kafka.record_builder import NewRecord, build_batch

from tests.benchmarks.raw_client import exchange

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 12
METADATA_VERSION: Final = 12
CREATE_VERSION: Final = 5
DELETE_VERSION: Final = 4
TOPIC_READY_S_MAX: Final = 60.0
NO_LEADER_YET: Final = (3, 5, 6)
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER."""

R = TypeVar("R", bound=Message)


def framed(key: ApiKey, version: int, client: str, request: Message) -> bytes:
    """Header and body with a length prefix."""
    body = encode_request_header(key, version, 1, client) + encode(request, version)
    return len(body).to_bytes(4, "big") + body


def produce_frame(topic: str, partition: int, batch_bytes: int, record_bytes: int, client: str) -> bytes:
    """A Produce request with one batch of about `batch_bytes`, acks=all."""
    count = max(1, batch_bytes // record_bytes)
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch([NewRecord(now_ms, None, bytes(record_bytes)) for _ in range(count)])
    data = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    return framed(ApiKey.PRODUCE, PRODUCE_VERSION, client, request)


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int, client: str) -> bytes:
    """A Fetch request of one partition."""
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    return framed(ApiKey.FETCH, FETCH_VERSION, client, request)


def metadata_frame(topic: str, client: str) -> bytes:
    """A Metadata request of one topic."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return framed(ApiKey.METADATA, METADATA_VERSION, client, request)


def check_produce(bootstrap: str, frame: bytes) -> None:
    """Check that a Produce succeeds, so that no errors are measured. Wait for a leader of a new partition."""
    deadline = time.monotonic() + TOPIC_READY_S_MAX
    while True:
        response = _ask(bootstrap, frame, ApiKey.PRODUCE, PRODUCE_VERSION, ProduceResponse)
        code = response.responses[0].partition_responses[0].error_code
        if code == 0:
            return
        assert code in NO_LEADER_YET, f"Produce is answered with error {code}"
        assert time.monotonic() < deadline, f"Produce is answered with error {code} for too long"
        time.sleep(0.05)


def check_fetch(bootstrap: str, frame: bytes) -> int:
    """Check that a Fetch succeeds; return the bytes of records."""
    response = _ask(bootstrap, frame, ApiKey.FETCH, FETCH_VERSION, FetchResponse)
    partition = response.responses[0].partitions[0]
    assert partition.error_code == 0, f"Fetch is answered with error {partition.error_code}"
    return len(partition.records or b"")


def create_topic(bootstrap: str, topic: str, partitions: int, configs: dict[str, str] | None = None) -> None:
    """Create a topic and wait until each of its partitions has a leader that accepts records."""
    wanted = CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=1,
        assignments=[],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in (configs or {}).items()],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=False)
    frame = framed(ApiKey.CREATE_TOPICS, CREATE_VERSION, "bench", request)
    answer = _ask(bootstrap, frame, ApiKey.CREATE_TOPICS, CREATE_VERSION, CreateTopicsResponse)
    code = answer.topics[0].error_code
    assert code == 0, f"topic {topic} is refused with error {code}: {answer.topics[0].error_message}"
    deadline = time.monotonic() + TOPIC_READY_S_MAX
    while led_partitions(bootstrap, topic) < partitions:
        assert time.monotonic() < deadline, f"topic {topic} has no leaders after {TOPIC_READY_S_MAX:g} s"
        time.sleep(0.05)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic with its data."""
    request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000)
    frame = framed(ApiKey.DELETE_TOPICS, DELETE_VERSION, "bench", request)
    answer = _ask(bootstrap, frame, ApiKey.DELETE_TOPICS, DELETE_VERSION, DeleteTopicsResponse)
    code = answer.responses[0].error_code
    assert code == 0, f"topic {topic} is not deleted: error {code}"


def led_partitions(bootstrap: str, topic: str) -> int:
    """Number of partitions of a topic with a leader; 0 while it does not exist."""
    frame = metadata_frame(topic, "bench")
    answer = _ask(bootstrap, frame, ApiKey.METADATA, METADATA_VERSION, MetadataResponse)
    partitions = answer.topics[0].partitions
    return sum(partition.error_code == 0 and partition.leader_id >= 0 for partition in partitions)


def _ask(bootstrap: str, frame: bytes, key: ApiKey, version: int, kind: type[R]) -> R:
    answer = exchange(bootstrap, frame)
    _, position = decode_response_header(key, version, answer)
    response, _ = decode_as(kind, version, answer, position)
    return response
