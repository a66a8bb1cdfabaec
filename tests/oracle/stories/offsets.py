"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from ponor_kafka.compression import Codec
from ponor_kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ponor_kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ponor_kafka.record_builder import build_batch

from tests.oracle.asking import batch, list_offsets, record
from tests.oracle.narrator import Narrator, Topic
from tests.oracle.story import story


@story("The special timestamps, in every version")
def list_offsets_special(k: Narrator) -> None:
    topic = k.topic("list-special")
    k.fill(topic, [batch(3), batch(2)])
    for version in range(1, 12):
        for timestamp in (-1, -2, -3, -4, -5, -6, -7):
            k.ask(list_offsets(topic, timestamp), version, f"timestamp {timestamp}")


@story("The special timestamps of an empty log")
def list_offsets_empty(k: Narrator) -> None:
    topic = k.topic("list-empty")
    for timestamp in (-1, -2, -3, -4, -5, -6, 0, 1_000_000):
        k.ask(list_offsets(topic, timestamp), 11, f"timestamp {timestamp}")


@story("By time: before, inside and after batches, compressed or not")
def list_offsets_by_time(k: Narrator) -> None:
    for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTD):
        topic = k.topic(f"list-by-time-{codec.name.lower()}")
        k.fill(topic, [batch(3, at=1000, codec=codec), batch(3, at=2000, codec=codec)])
        for timestamp in (0, 1000, 1001, 1010, 1020, 1021, 2000, 2015, 2020, 2021):
            k.ask(list_offsets(topic, timestamp), 11, f"{codec.name.lower()}, timestamp {timestamp}")


@story("By time, with timestamps out of order")
def list_offsets_disorder(k: Narrator) -> None:
    topic = k.topic("list-disorder")
    k.fill(
        topic, [bytes(build_batch([record(at=5000), record(at=1000), record(at=3000)])), batch(2, at=2000)]
    )
    for timestamp in (-3, 1000, 1500, 2500, 4000, 5000, 5001):
        k.ask(list_offsets(topic, timestamp), 11, f"timestamp {timestamp}")
    k.fill(topic, [batch(1, at=5000)])
    k.ask(list_offsets(topic, -3), 11, "the largest timestamp, held by two")


@story("Unknown partitions, epochs, isolation levels and replicas")
def list_offsets_errors(k: Narrator) -> None:
    topic = k.topic("list-errors")
    k.fill(topic, [batch(2)])
    for version in (1, 4, 11):
        k.ask(list_offsets(topic, -1, partition=1), version, "an unknown partition")
        k.ask(list_offsets(Topic("list-missing", bytes(16)), -1), version, "an unknown topic")
    for epoch in (0, 1, 50):
        k.ask(list_offsets(topic, -1, epoch=epoch), 5, f"epoch {epoch}")
    for isolation in (0, 1):
        k.ask(list_offsets(topic, -1, isolation=isolation), 5, f"isolation {isolation}")
    k.ask(list_offsets(topic, -1, replica_id=-2), 5, "the debugging consumer")
    k.ask(list_offsets(topic, -1, replica_id=77), 5, "an invalid replica id")
    twice = [ListOffsetsPartition(0, timestamp=-1), ListOffsetsPartition(0, timestamp=-2)]
    k.ask(ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic.name, twice)]), 5, "one partition twice")


@story("End offsets of leader epochs")
def leader_epoch_ends(k: Narrator) -> None:
    topic = k.topic("epoch-ends")
    k.fill(topic, [batch(3)])

    def asks(
        epoch: int, current: int = -1, name: str = topic.name, partition: int = 0
    ) -> OffsetForLeaderEpochRequest:
        rows = [OffsetForLeaderPartition(partition, current, epoch)]
        return OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(name, rows)])

    for version in (2, 3, 4):
        k.ask(asks(0), version, "epoch 0")
    for epoch in (-1, 1, 1000):
        k.ask(asks(epoch), 4, f"epoch {epoch}")
    k.ask(asks(0, current=0), 4, "sent with epoch 0")
    k.ask(asks(0, current=9), 4, "sent with epoch 9")
    k.ask(asks(0, partition=5), 4, "an unknown partition")
    k.ask(asks(0, name="epoch-missing"), 4, "an unknown topic")
