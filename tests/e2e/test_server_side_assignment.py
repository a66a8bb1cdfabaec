"""Consumer groups with server-side assignment (KIP-848) of an unmodified client against real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.scenarios import create_topic

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PARTITIONS = 6
RECORDS = 300
WAIT_S_MAX = 240.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("consumer_groups")
    with LocalCluster(directory, settings={"group_consumer_heartbeat_interval_ms": 500}) as cluster:
        yield cluster


def member(cluster: LocalCluster, group: str, **config: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
    )


def produce(cluster: LocalCluster, topic: str, first: int) -> set[int]:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(first, first + RECORDS):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(WAIT_S_MAX) == 0
    return set(range(first, first + RECORDS))


def poll_until(consumers: list[Consumer], is_done: Callable[[], bool], read: set[int]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_done():
        assert time.monotonic() < deadline, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            record = consumer.poll(0.05)
            if record is not None:
                assert record.error() is None, record.error()
                read.add(int(record.value() or b""))


class RollingBounce:
    """Consumers of one group, replaced one after the other while records are written. Each commits every
    record that it reads.
    """

    def __init__(self, cluster: LocalCluster, topic: str, group: str, strategy: str) -> None:
        self.cluster, self.topic, self.group, self.strategy = cluster, topic, group, strategy
        self.consumers: list[Consumer] = []
        self.expected, self.committed = set[int](), set[int]()
        self.repeated: list[int] = []

    def start(self, protocol: str) -> None:
        classic = {"partition.assignment.strategy": self.strategy, "session.timeout.ms": 45_000}
        config = {"group.protocol": protocol, **(classic if protocol == "classic" else {})}
        consumer = member(self.cluster, self.group, **config)
        consumer.subscribe([self.topic])
        self.consumers.append(consumer)

    def replace_oldest(self, protocol: str) -> None:
        self.consumers.pop(0).close()
        self.start(protocol)

    def read_all(self) -> None:
        """Write records, and consume until every record is committed and every consumer has its part."""
        self.expected |= produce(self.cluster, self.topic, len(self.expected))
        deadline = time.monotonic() + WAIT_S_MAX
        while self.committed != self.expected or not self._is_spread:
            shares = [len(each.assignment()) for each in self.consumers]
            assert time.monotonic() < deadline, (len(self.committed), len(self.expected), shares)
            for consumer in self.consumers:
                self._consume(consumer)

    @property
    def _is_spread(self) -> bool:
        shares = [len(consumer.assignment()) for consumer in self.consumers]
        return sum(shares) == PARTITIONS and min(shares) > 0

    def _consume(self, consumer: Consumer) -> None:
        record = consumer.poll(0.05)
        if record is None:
            return
        assert record.error() is None, record.error()
        number = int(record.value() or b"")
        if number in self.committed:
            self.repeated.append(number)
        try:
            consumer.commit(message=record, asynchronous=False)
        except KafkaException:
            return  # the partition has another owner now; the record is read again
        self.committed.add(number)

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


def test_members_share_the_partitions_and_hand_them_over(cluster: LocalCluster) -> None:
    create_topic(cluster, "shared", PARTITIONS)
    expected, read = produce(cluster, "shared", 0), set[int]()
    first, second = member(cluster, "g"), member(cluster, "g")
    first.subscribe(["shared"])
    poll_until([first], lambda: read == expected, read)
    assert len(first.assignment()) == PARTITIONS
    first.commit(asynchronous=False)

    second.subscribe(["shared"])
    both = [first, second]
    poll_until(both, lambda: [len(each.assignment()) for each in both] == [PARTITIONS // 2] * 2, read)
    held = [{(each.topic, each.partition) for each in consumer.assignment()} for consumer in both]
    assert not held[0] & held[1]
    expected |= produce(cluster, "shared", RECORDS)
    poll_until(both, lambda: read == expected, read)
    for consumer in both:
        consumer.commit(asynchronous=False)

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = admin.describe_consumer_groups(["g"])["g"].result(WAIT_S_MAX)
    assert described.state.name == "STABLE"
    assert described.type is ConsumerGroupType.CONSUMER
    assert sorted(len(each.assignment.topic_partitions) for each in described.members) == [3, 3]
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(WAIT_S_MAX)
    assert [each.group_id for each in listed.valid] == ["g"]

    first.close()
    poll_until([second], lambda: len(second.assignment()) == PARTITIONS, read)
    cluster.kill("broker")
    expected |= produce(cluster, "shared", 2 * RECORDS)
    poll_until([second], lambda: read == expected, read)
    second.commit(asynchronous=False)
    second.close()
    wanted = ConsumerGroupTopicPartitions("g", [TopicPartition("shared", n) for n in range(PARTITIONS)])
    offsets = admin.list_consumer_group_offsets([wanted])["g"].result(WAIT_S_MAX)
    assert sum(each.offset for each in offsets.topic_partitions or ()) == 3 * RECORDS
    admin.delete_consumer_groups(["g"])["g"].result(WAIT_S_MAX)


def test_a_pattern_finds_topics_and_a_static_member_keeps_its_partitions(cluster: LocalCluster) -> None:
    create_topic(cluster, "pattern-a", PARTITIONS)
    expected, read = produce(cluster, "pattern-a", 0), set[int]()
    consumer = member(cluster, "p", **{"group.instance.id": "one"})
    consumer.subscribe(["^pattern-.*"])
    poll_until([consumer], lambda: read == expected, read)
    consumer.commit(asynchronous=False)
    consumer.close()
    expected |= produce(cluster, "pattern-a", RECORDS)
    again = member(cluster, "p", **{"group.instance.id": "one"})
    again.subscribe(["^pattern-.*"])
    poll_until([again], lambda: expected - read == set(), read)
    again.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_rolling_bounce_changes_the_protocol_and_back(cluster: LocalCluster, strategy: str) -> None:
    """No committed record is lost or repeated while members change from classic to consumer and back."""
    topic = group = f"bounce-{strategy}"
    create_topic(cluster, topic, PARTITIONS)
    bounce = RollingBounce(cluster, topic, group, strategy)
    for _ in range(2):
        bounce.start("classic")
    bounce.read_all()
    for protocol in ("consumer", "consumer", "classic", "classic"):
        bounce.replace_oldest(protocol)
        bounce.read_all()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(WAIT_S_MAX)
    assert described.type is ConsumerGroupType.CLASSIC
    bounce.close()
    assert bounce.repeated == []


def test_an_empty_classic_group_becomes_a_consumer_group_and_the_reverse(cluster: LocalCluster) -> None:
    create_topic(cluster, "both", PARTITIONS)
    expected, read = produce(cluster, "both", 0), set[int]()
    for number, protocol in enumerate(("classic", "consumer", "classic")):
        consumer = member(cluster, "b", **{"group.protocol": protocol})
        consumer.subscribe(["both"])
        poll_until([consumer], lambda: read == expected, read)
        consumer.commit(asynchronous=False)
        consumer.close()
        expected.update(produce(cluster, "both", (number + 1) * RECORDS))
