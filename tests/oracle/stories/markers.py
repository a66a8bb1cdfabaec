"""WriteTxnMarkers, as a transaction coordinator sends it to the leaders of partitions."""

from __future__ import annotations

from typing import Any

from ponor_kafka.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest
from ponor_kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

from tests.oracle.asking import fetch, idempotent, list_offsets, produce
from tests.oracle.narrator import Narrator
from tests.oracle.story import story


def marker(
    producer: Any,
    places: dict[str, list[int]],
    *,
    commits: bool = True,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    generation: int = 0,
) -> WritableTxnMarker:
    """One producer's marker."""
    topics = [WritableTxnMarkerTopic(name, indexes) for name, indexes in places.items()]
    return WritableTxnMarker(producer.producer_id, epoch, commits, topics, coordinator_epoch, generation)


@story("Markers of producers without open transactions")
def markers(k: Narrator) -> None:
    topic = k.topic("markers", 2)
    producers = DescribeProducersRequest([TopicRequest(topic.name, [0, 1])])
    one = k.ask(InitProducerIdRequest(None, 60_000), 4, "an id")
    k.fill(topic, [idempotent(one, 0, 3)])
    both = marker(one, {topic.name: [0, 1]}, coordinator_epoch=5)
    k.ask(WriteTxnMarkersRequest([both]), 1, "a commit of a known and an unknown producer")
    k.ask(producers, 0, "both are known")
    abort = marker(one, {topic.name: [0]}, commits=False, coordinator_epoch=5)
    k.ask(WriteTxnMarkersRequest([abort]), 2, "an abort, again with the same epochs")
    k.ask(list_offsets(topic, -1), 7, "each marker takes an offset")
    k.ask(produce(topic, idempotent(one, 3)), 9, "the sequence continues")
    old = marker(one, {topic.name: [0]}, coordinator_epoch=4)
    k.ask(WriteTxnMarkersRequest([old]), 1, "an old coordinator")
    newer = marker(one, {topic.name: [0]}, epoch=2, coordinator_epoch=5)
    k.ask(WriteTxnMarkersRequest([newer]), 1, "a newer epoch of the producer")
    k.ask(producers, 0, "it has no sequence")
    k.ask(produce(topic, idempotent(one, 4)), 9, "the old epoch")
    k.ask(produce(topic, idempotent(one, 4, epoch=2)), 9, "the new epoch does not begin at 0")
    k.ask(WriteTxnMarkersRequest([both]), 1, "an old epoch on one partition, not on the other")
    k.ask(produce(topic, idempotent(one, 0, epoch=2)), 9, "the new epoch")
    # Kafka begins a segment with the first marker, because the records before are old.
    k.ask(fetch(topic, 3, isolation=1), 12, "everything is committed")


@story("Markers of generation 2, repeated and with newer epochs")
def markers_generation_2(k: Narrator) -> None:
    topic = k.topic("markers-generation-2")
    one = k.ask(InitProducerIdRequest(None, 60_000), 4, "an id")
    k.fill(topic, [idempotent(one, 0)])
    for epoch in (0, 1, 1, 0, 2, 32767, 32767):
        row = marker(one, {topic.name: [0]}, epoch=epoch, generation=2)
        k.ask(WriteTxnMarkersRequest([row]), 2, f"epoch {epoch}")
    k.ask(DescribeProducersRequest([TopicRequest(topic.name, [0])]), 0, "its epoch")


@story("Markers for several and unknown partitions, in both versions")
def markers_nowhere(k: Narrator) -> None:
    topic = k.topic("markers-nowhere", 2)
    one = k.ask(InitProducerIdRequest(None, 60_000), 4, "an id")
    two = k.ask(InitProducerIdRequest(None, 60_000), 4, "another")
    places = {topic.name: [0, 1, 2], "markers-missing": [0]}
    for version in (1, 2):
        rows = [marker(one, places), marker(two, {topic.name: [1]}, commits=False)]
        k.ask(WriteTxnMarkersRequest(rows), version, "some of them exist")
        k.ask(WriteTxnMarkersRequest([]), version, "no markers")
        k.ask(WriteTxnMarkersRequest([marker(one, {})]), version, "no topics")
