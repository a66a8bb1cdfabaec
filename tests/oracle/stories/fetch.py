"""Fetch: sizes, offsets, waiting, epochs."""

from __future__ import annotations

from ponor_kafka.messages.delete_topics import DeleteTopicsRequest
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ponor_kafka.record_builder import build_batch

from tests.oracle.asking import batch, fetch, produce, record
from tests.oracle.narrator import Narrator, Topic
from tests.oracle.story import story


def big(count: int = 10) -> bytes:
    """A batch of about `count` KB."""
    return bytes(build_batch([record(bytes(1000))] * count))


@story("From the beginning, in every version")
def fetch_versions(k: Narrator) -> None:
    topic = k.topic("fetch-versions")
    k.fill(topic, [batch(2), batch(3)])
    for version in range(4, 19):
        k.ask(fetch(topic, 0), version, "two batches")


@story("Offsets before, in and after the log")
def fetch_offsets(k: Narrator) -> None:
    topic = k.topic("fetch-offsets")
    k.fill(topic, [batch(10), batch(10)])
    for offset in (0, 9, 10, 13, 19):
        k.ask(fetch(topic, offset, partition_bytes=1), 12, f"offset {offset}: the batch that holds it")
    for version in (4, 12, 16):
        k.ask(fetch(topic, 20), version, "the end: nothing, and no error")
        k.ask(fetch(topic, 21), version, "behind the end")
        k.ask(fetch(topic, -1), version, "before the beginning")
    empty = k.topic("fetch-empty")
    k.ask(fetch(empty, 0), 12, "an empty log")
    k.ask(fetch(empty, 1), 12, "behind an empty log")


@story("Size limits are soft: the first batch is returned whole")
def fetch_sizes(k: Narrator) -> None:
    topic = k.topic("fetch-sizes", 2)
    k.fill(topic, [big(), big(), big()])
    k.fill(topic, [big(), big()], partition=1)
    one = len(big())
    k.ask(fetch(topic, 0, partition_bytes=0), 12, "0 bytes of a partition")
    k.ask(fetch(topic, 0, partition_bytes=1), 12, "1 byte of a partition")
    k.ask(fetch(topic, 0, partition_bytes=2 * one), 12, "two batches of a partition")
    k.ask(fetch(topic, 0, partition_bytes=2 * one - 1), 12, "a byte less than two batches")
    k.ask(fetch(topic, 0, max_bytes=1), 12, "1 byte in all")
    k.ask(fetch(topic, 0, max_bytes=0), 12, "0 bytes in all")
    k.ask(fetch(topic, 0, max_bytes=one + 10), 12, "a little more than a batch in all")
    both = [FetchPartition(0, partition_max_bytes=1 << 20), FetchPartition(1, partition_max_bytes=1 << 20)]
    several = FetchRequest(max_bytes=one, topics=[FetchTopic(topic.name, topic.id, both)])
    k.ask(several, 12, "two partitions, one batch in all")
    tight = [FetchPartition(0, partition_max_bytes=1), FetchPartition(1, partition_max_bytes=1)]
    k.ask(
        FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(topic.name, topic.id, tight)]),
        12,
        "1 byte of each partition",
    )
    k.ask(fetch(topic, 0, partition_bytes=-1), 12, "a negative size")


@story("Waiting for data")
def fetch_waits(k: Narrator) -> None:
    topic = k.topic("fetch-waits")
    k.ask(fetch(topic, 0, min_bytes=1, wait_ms=50), 12, "nothing comes in 50 ms")
    k.ask(fetch(topic, 0, min_bytes=0, wait_ms=60_000), 12, "no bytes wanted: no waiting")
    waiting = k.send(fetch(topic, 0, min_bytes=1, wait_ms=60_000), 12, "woken by an append")
    k.fill(topic, [batch(2)])
    k.take(waiting)
    waiting = k.send(fetch(topic, 0, min_bytes=200, wait_ms=60_000), 12, "woken when there is enough")
    k.fill(topic, [batch(2)])
    k.fill(topic, [batch(2)])
    k.take(waiting)
    k.ask(fetch(topic, 99, min_bytes=1, wait_ms=60_000), 12, "an error does not wait")
    k.ask(fetch(topic, 6, min_bytes=1, wait_ms=0), 12, "no time to wait")
    k.ask(fetch(topic, 6, min_bytes=1, wait_ms=-1), 12, "a negative time to wait")
    k.ask(FetchRequest(max_wait_ms=50, min_bytes=1), 12, "no partitions at all")


@story("Unknown topics with a maximum wait time")
def fetch_waits_nowhere(k: Narrator) -> None:
    topic = k.topic("fetch-waits-nowhere")
    missing = Topic("fetch-waits-missing", bytes(range(16)))
    for version in (12, 13):
        k.ask(fetch(missing, 0, min_bytes=1, wait_ms=60_000), version, "nothing but an unknown topic")
        wanted = [FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)]
        both = [FetchTopic(topic.name, topic.id, wanted), FetchTopic(missing.name, missing.id, wanted)]
        k.ask(FetchRequest(max_wait_ms=400, min_bytes=1, topics=both), version, "beside an empty partition")
    k.ask(FetchRequest(max_wait_ms=60_000, min_bytes=1, session_epoch=0), 12, "a session of nothing")
    begun = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1,
        session_epoch=0,
        topics=[FetchTopic(missing.name, missing.id, wanted)],
    )
    answer = k.ask(begun, 12, "a session of an unknown topic")
    again = FetchRequest(max_wait_ms=60_000, min_bytes=1, session_id=answer.session_id, session_epoch=1)
    k.ask(again, 12, "it goes on")


@story("Unknown topics and partitions")
def fetch_nowhere(k: Narrator) -> None:
    topic = k.topic("fetch-nowhere")
    k.fill(topic, [batch()])
    k.ask(fetch(topic, 0, partition=1), 12, "an unknown partition")
    k.ask(fetch(topic, 0, partition=-1), 12, "a negative partition")
    missing = Topic("fetch-missing", bytes(range(16)))
    for version in (4, 11, 12, 13, 18):
        k.ask(fetch(missing, 0), version, "an unknown topic")
    k.ask(fetch(Topic(topic.name, bytes(16)), 0), 13, "no id")
    k.ask(fetch(topic, 0, partition=1), 13, "an unknown partition, by id")
    mixed = FetchRequest(
        topics=[
            FetchTopic(topic.name, topic.id, [FetchPartition(0, partition_max_bytes=1 << 20)]),
            FetchTopic(missing.name, missing.id, [FetchPartition(0, partition_max_bytes=1 << 20)]),
        ],
        max_wait_ms=50,
        min_bytes=1 << 20,
    )
    k.ask(mixed, 12, "one exists, one does not")
    k.ask(mixed, 13, "one exists, one does not, by id")
    twice = [FetchPartition(0, partition_max_bytes=1 << 20)] * 2
    k.ask(FetchRequest(topics=[FetchTopic(topic.name, topic.id, twice)]), 12, "the same partition twice")


@story("Leader epochs: old, new, unknown, and diverging logs")
def fetch_epochs(k: Narrator) -> None:
    topic = k.topic("fetch-epochs")
    k.fill(topic, [batch(2)])
    for epoch in (-1, 0, 1, 1000):
        k.ask(fetch(topic, 0, epoch=epoch), 12, f"the leader's epoch is said to be {epoch}")
    k.ask(fetch(topic, 0, epoch=7), 16, "a future epoch, with hints in the answer")
    for last in (0, 3):
        wanted = FetchPartition(0, 0, 2, last, partition_max_bytes=1 << 20)
        k.ask(
            FetchRequest(topics=[FetchTopic(topic.name, topic.id, [wanted])]),
            12,
            f"the last fetched epoch is {last}",
        )
    wanted = FetchPartition(0, -1, 99, 0, partition_max_bytes=1 << 20)
    k.ask(
        FetchRequest(topics=[FetchTopic(topic.name, topic.id, [wanted])]),
        12,
        "epoch 0 never reached offset 99",
    )


@story("read_committed without transactions")
def fetch_isolation(k: Narrator) -> None:
    topic = k.topic("fetch-isolation")
    k.fill(topic, [batch(2)])
    for isolation in (0, 1, 2, -1):
        k.ask(fetch(topic, 0, isolation=isolation), 12, f"isolation {isolation}")
        k.ask(fetch(topic, 2, isolation=isolation), 4, f"isolation {isolation}, nothing to read")


@story("Clients with a replica id")
def fetch_as_replica(k: Narrator) -> None:
    topic = k.topic("fetch-as-replica")
    k.fill(topic, [batch(2)])
    k.ask(fetch(topic, 0, replica_id=-2), 12, "the debugging consumer")
    k.ask(fetch(topic, 0, replica_id=4711), 12, "an invalid replica id")
    k.ask(fetch(topic, 0, rack_id="a-rack"), 12, "a consumer in a rack")
    k.ask(fetch(topic, 0, cluster_id="some-other-cluster"), 12, "with another cluster id")


@story("A deleted and recreated topic is a different topic")
def fetch_recreated(k: Narrator) -> None:
    old = k.topic("fetch-recreated")
    k.fill(old, [batch(2)])
    k.quietly(DeleteTopicsRequest(topic_names=[old.name], timeout_ms=10_000), 5)
    new = k.topic("fetch-recreated")
    k.ask(fetch(old, 0), 13, "with the old id")
    k.ask(produce(old, batch()), 13, "produce with the old id")
    k.ask(fetch(new, 0), 13, "with the new id")
    k.ask(fetch(new, 1), 12, "by name, at an offset of the old")


@story("A topic is deleted while a fetch waits for it")
def fetch_deleted(k: Narrator) -> None:
    topic = k.topic("fetch-deleted")
    k.fill(topic, [batch(2)])
    waiting = k.send(fetch(topic, 2, min_bytes=1, wait_ms=2_000), 12, "waits at the end")
    k.settle()
    k.quietly(DeleteTopicsRequest(topic_names=[topic.name], timeout_ms=10_000), 5)
    k.take(waiting)
    k.settle()
    k.ask(fetch(topic, 0), 12, "by name, afterwards")
    k.ask(fetch(topic, 0), 13, "by id, afterwards")
    k.ask(produce(topic, batch()), 9, "a batch, afterwards")
