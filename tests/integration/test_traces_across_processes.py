"""Traces of one produce and one cold fetch, from the socket to the object through two processes, as
a collector receives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.scenarios import create_topic
from tests.e2e.stores import store_for_test
from tests.integration.otlp_collector import CollectedSpan, OtlpCollector

pytestmark = [pytest.mark.e2e, pytest.mark.s3]
TOPIC = "traced"
VALUE = bytes(range(256)) * 800
"""Above `split_size_bytes`, so that it gets its own object, which no other read of a starting
broker caches."""
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "500"}


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(collector: OtlpCollector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory: Path = tmp_path_factory.mktemp("traced")
    with store_for_test("s3", directory) as store:
        running = LocalCluster(
            directory / "cluster",
            settings={"upload_interval_ms": 300, "small_rest_bytes_max": 0, "split_size_bytes": "64KiB"},
            arguments=["--otlp", collector.endpoint, "--trace-ratio", "1.0", *store.arguments],
            environment={**store.environment, **QUICK},
        )
        with running:
            create_topic(running, TOPIC, 1)
            yield running


def child(spans: list[CollectedSpan], parent: CollectedSpan, name: str) -> CollectedSpan:
    """The first child with this name."""
    found = [span for span in spans if span.name == name and span.is_child_of(parent)]
    assert found, (
        f"{parent.name} has no {name}; its children are {[s.name for s in spans if s.is_child_of(parent)]}"
    )
    return found[0]


def within(inner: CollectedSpan, outer: CollectedSpan) -> bool:
    return outer.started_ns <= inner.started_ns <= inner.ended_ns <= outer.ended_ns


def produce_requests(collector: OtlpCollector) -> list[CollectedSpan]:
    """Sampled requests that wrote to the topic."""
    appended = {
        span.parent_id
        for span in collector.named("ponor.produce.append")
        if span.attributes["messaging.destination.name"] == TOPIC
    }
    return [span for span in collector.named("ponor.kafka.request") if span.span_id in appended]


def test_a_produce_is_traced_to_the_object_and_into_the_controller(
    cluster: LocalCluster, collector: OtlpCollector
) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "traced-writer", "acks": "all"})
    producer.produce(TOPIC, VALUE, b"key")
    assert producer.flush(240) == 0

    def has_upload() -> bool:
        traces = {span.trace_id for span in produce_requests(collector)}
        uploads = [span for span in collector.named("ponor.upload") if span.trace_id in traces]
        operations = [
            span for span in collector.named("ponor.controller.operation") if span.trace_id in traces
        ]
        return bool(uploads) and len(operations) >= 2

    collector.wait_for("the trace of a produce with its upload", has_upload)
    request = produce_requests(collector)[0]
    spans = [span for span in collector.spans if span.trace_id == request.trace_id]

    assert request.kind == "SERVER"
    assert request.parent_id == b""
    assert (request.service, request.instance) == ("ponor-broker", "broker-0")
    assert request.attributes["messaging.system"] == "kafka"
    assert request.attributes["messaging.operation.name"] == "send"
    assert request.attributes["messaging.client.id"] == "traced-writer"
    assert request.attributes["network.peer.address"] == "127.0.0.1"
    assert request.attributes["ponor.kafka.api"] == "produce"

    validate = child(spans, request, "ponor.produce.validate")
    append = child(spans, request, "ponor.produce.append")
    commit = child(spans, request, "ponor.wal.commit")
    for step in (validate, append):
        assert step.attributes["messaging.destination.name"] == TOPIC
        assert step.attributes["messaging.destination.partition.id"] == "0"
        assert step.attributes["messaging.batch.message_count"] == 1
        assert within(step, request)
    assert validate.ended_ns <= append.started_ns <= commit.ended_ns <= request.ended_ns

    check_upload(spans, request)


def check_upload(spans: list[CollectedSpan], request: CollectedSpan) -> None:
    """The upload of the append: two operations at the controller, and a put between them."""
    upload = child(spans, request, "ponor.upload")
    assert (request.trace_id, request.span_id) in upload.links
    puts = [span for span in spans if span.name == "ponor.object_store.put" and span.is_child_of(upload)]
    put = max(puts, key=lambda span: int(span.attributes["ponor.object.bytes"]))
    assert put.kind == "CLIENT"
    assert put.attributes["rpc.method"] == "S3/PutObject"
    assert put.attributes["aws.s3.bucket"] == "ponor"
    assert put.attributes["aws.s3.key"].startswith("ponor/")
    assert put.attributes["ponor.object.bytes"] > len(VALUE)

    asked = {
        span.attributes["ponor.operation"]: span
        for span in spans
        if span.name == "ponor.session.operation" and span.is_child_of(upload)
    }
    assert set(asked) == {"prepare_objects", "commit_upload"}
    for operation, span in asked.items():
        assert span.kind == "CLIENT"
        assert span.attributes["rpc.system.name"] == "grpc"
        assert span.attributes["rpc.method"] == "ponor.controller.v1.SessionService/Session"
        done = child(spans, span, "ponor.controller.operation")
        assert (done.service, done.instance, done.kind) == ("ponor-controller", "controller-0", "SERVER")
        assert done.attributes["ponor.operation"] == operation
        assert done.attributes["ponor.commit_index"] > 0
    assert asked["prepare_objects"].ended_ns <= put.started_ns
    assert put.ended_ns <= asked["commit_upload"].started_ns


def test_a_cold_fetch_is_traced_through_index_and_blocks(
    cluster: LocalCluster, collector: OtlpCollector
) -> None:
    # A second object, because the start reads and caches the newest one.
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    producer.produce(TOPIC, b"later", b"key")
    assert producer.flush(240) == 0
    cluster.run("node", "stop", "broker", "0")  # its memory is dropped; a stop uploads everything
    cluster.run("node", "start", "broker", "0")
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "cold", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    record = next(filter(None, (consumer.poll(1) for _ in range(240))))
    assert record.error() is None
    assert record.value() == VALUE
    consumer.close()

    def cold_reads() -> list[CollectedSpan]:
        ids = {span.span_id for span in collector.named("ponor.kafka.request")}
        return [
            span
            for span in collector.named("ponor.fetch.objects")
            if span.parent_id in ids and span.attributes["ponor.fetch.start_offset"] == 0
        ]

    collector.wait_for("the trace of a cold fetch", lambda: bool(cold_reads()))
    read = cold_reads()[0]
    request = next(span for span in collector.named("ponor.kafka.request") if span.span_id == read.parent_id)
    spans = [span for span in collector.spans if span.trace_id == request.trace_id]
    assert request.kind == "SERVER"
    assert request.attributes["messaging.operation.name"] == "poll"
    assert read.attributes["ponor.fetch.start_offset"] == 0
    assert within(read, request)

    find = child(spans, read, "ponor.fetch.find")
    gets = sorted(
        (span for span in spans if span.name == "ponor.object_store.get" and span.is_child_of(read)),
        key=lambda span: span.started_ns,
    )
    assert len(gets) >= 2, f"an index and at least one run of blocks, in {[span.name for span in spans]}"
    index, *blocks = gets
    assert find.ended_ns <= index.started_ns
    assert index.ended_ns <= blocks[0].started_ns
    for get in gets:
        assert get.kind == "CLIENT"
        assert get.attributes["rpc.method"] == "S3/GetObject"
        assert get.attributes["aws.s3.bucket"] == "ponor"
    assert {get.attributes["aws.s3.key"] for get in gets} == {index.attributes["aws.s3.key"]}


def test_metrics_arrive_by_otlp_with_their_process(cluster: LocalCluster, collector: OtlpCollector) -> None:
    def produced() -> float:
        return sum(
            value
            for attributes, value in collector.metric("ponor_kafka_request_seconds")
            if attributes.get("service.instance.id") == "broker-0" and attributes.get("api") == "metadata"
        )

    collector.wait_for("a histogram of the broker", lambda: produced() > 0)
    collector.wait_for("a counter", lambda: bool(collector.metric("ponor_kafka_requests_total")))
    collector.wait_for("a gauge", lambda: bool(collector.metric("ponor_controller_committed_index")))
    assert collector.metric("ponor_controller_committed_index")[0][1] > 0
