"""The leaders that a client learns: newer epochs replace older ones."""

from __future__ import annotations

from ponor_cluster_simulation.workload.leaders import Leaders
from ponor_kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ponor_kafka.messages.produce import LeaderIdAndEpoch, NodeEndpoint


def metadata(leader: int, epoch: int) -> MetadataResponse:
    brokers = [MetadataResponseBroker(node, f"broker-{node}", 9092) for node in (1, 2)]
    row = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    topic = MetadataResponseTopic(name="orders", topic_id=bytes(15) + b"\1", partitions=[row])
    return MetadataResponse(brokers=brokers, topics=[topic])


def test_an_older_epoch_is_ignored() -> None:
    leaders = Leaders("client", "orders", ["broker-1:9092"])
    assert leaders.leader_of(0) is None
    leaders._take(metadata(1, 4))
    assert (leaders.leader_of(0), leaders.epoch_of(0)) == (1, 4)
    leaders._take(metadata(2, 3))
    assert leaders.leader_of(0) == 1


def test_a_hint_adds_an_unknown_broker() -> None:
    leaders = Leaders("client", "orders", ["broker-1:9092"])
    leaders._take(metadata(1, 4))
    leaders.hint(0, LeaderIdAndEpoch(3, 5), [NodeEndpoint(3, "broker-3", 9092)])
    assert leaders.leader_of(0) == 3
    assert leaders.addresses[3] == "broker-3:9092"
    assert leaders.hints == 1


def test_a_refusal_without_a_hint_triggers_a_metadata_request() -> None:
    leaders = Leaders("client", "orders", ["broker-1:9092"])
    leaders._take(metadata(1, 4))
    leaders._is_doubtful = False
    leaders.hint(0, LeaderIdAndEpoch(1, 4), [])
    assert leaders._is_doubtful
    assert leaders.hints == 0


def test_no_leader_is_known_while_there_is_none() -> None:
    leaders = Leaders("client", "orders", ["broker-1:9092"])
    leaders._take(metadata(1, 4))
    leaders._take(metadata(-1, 4))
    assert leaders.leader_of(0) is None
    leaders._take(metadata(1, 4))
    assert leaders.leader_of(0) == 1
