"""Topics: creation, growth, deletion, and errors."""

from __future__ import annotations

from collections.abc import Mapping

from ponor_kafka.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ponor_kafka.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ponor_kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

from tests.oracle.narrator import Narrator
from tests.oracle.story import story

NO_ID = bytes(16)


def create(
    *names: str,
    partitions: int = 1,
    copies: int = 1,
    configs: Mapping[str, str | None] | None = None,
    placed: Mapping[int, list[int]] | None = None,
    validate: bool = False,
) -> CreateTopicsRequest:
    """Create topics with equal parameters."""
    rows = [CreatableTopicConfig(name, value) for name, value in (configs or {}).items()]
    places = [CreatableReplicaAssignment(index, nodes) for index, nodes in (placed or {}).items()]
    topics = [CreatableTopic(name, partitions, copies, places, rows) for name in names]
    return CreateTopicsRequest(topics, 30_000, validate)


@story("One topic is created in every version, then again")
def create_topics(k: Narrator) -> None:
    for version in range(2, 8):
        k.ask(create(f"create-{version}", partitions=2), version, "a new topic")
        k.ask(create(f"create-{version}", partitions=2), version, "it is there")
    k.ask(create("create-defaults", partitions=-1, copies=-1), 5, "default partitions and replication factor")
    k.ask(create("create-dry", validate=True), 7, "validate only")
    k.ask(create("create-dry"), 7, "it was not created")
    k.ask(create("create-dry", validate=True), 7, "validate only, for an existing topic")


@story("Invalid topic names")
def create_topics_names(k: Narrator) -> None:
    for name in ("", ".", "..", "a b", "a/b", "ü", "x" * 250, "nul\x00"):
        k.ask(create(name), 7, f"the name {name[:12]!r}")
    k.ask(create("x" * 249, validate=True), 7, "the longest name")
    k.ask(create("create.collides"), 7, "a dot")
    k.ask(create("create_collides"), 7, "an underscore where there is a dot")
    k.ask(create("create-twice", "create-twice"), 7, "one name twice")
    k.ask(create("create-good", "create bad", "create-fine"), 7, "a bad one among good ones")
    k.ask(CreateTopicsRequest([], 1000), 7, "no topics")


@story("Invalid numbers of partitions and replicas")
def create_topics_numbers(k: Narrator) -> None:
    for partitions in (0, -2):
        k.ask(create("create-numbers", partitions=partitions), 7, f"{partitions} partitions")
    for copies in (0, -2, 2, 32767):
        k.ask(create("create-numbers", copies=copies, validate=True), 7, f"{copies} copies")


@story("Partitions with assigned brokers")
def create_topics_placed(k: Narrator) -> None:
    k.ask(
        create("placed-nowhere", partitions=-1, copies=-1, placed={0: [4711]}),
        7,
        "on an unknown broker",
    )
    k.ask(create("placed-empty", partitions=-1, copies=-1, placed={0: []}), 7, "on no broker")
    k.ask(create("placed-gap", partitions=-1, copies=-1, placed={1: [4711]}), 7, "without a partition 0")
    k.ask(create("placed-both", partitions=1, copies=1, placed={0: [4711]}), 7, "with numbers as well")


@story("Configs of a new topic")
def create_topics_configs(k: Narrator) -> None:
    k.ask(
        create("configs-good", configs={"retention.ms": "60000", "cleanup.policy": "compact,delete"}),
        7,
        "good ones",
    )
    k.ask(create("configs-none", configs={"retention.ms": None}), 7, "a null value")
    bad = {
        "no.such.config": "1",
        "retention.ms": "-2",
        "retention.bytes": "many",
        "cleanup.policy": "burn",
        "segment.bytes": "0",
        "max.message.bytes": "-1",
        "compression.type": "rar",
        "message.timestamp.type": "Never",
        "min.insync.replicas": "0",
        "min.cleanable.dirty.ratio": "1.5",
        "unclean.leader.election.enable": "perhaps",
        "segment.ms": "",
        "compression.gzip.level": "10",
    }
    for name, value in bad.items():
        k.ask(create("configs-bad", configs={name: value}), 7, f"{name}={value}")
    twice = [CreatableTopicConfig("retention.ms", "1000"), CreatableTopicConfig("retention.ms", "2000")]
    topic = CreatableTopic("configs-twice", 1, 1, configs=twice)
    k.ask(CreateTopicsRequest([topic], 1000), 7, "one config twice")


@story("Topics are deleted by name or by id")
def delete_topics(k: Narrator) -> None:
    for version in range(1, 6):
        k.topic(f"delete-{version}")
        request = DeleteTopicsRequest(topic_names=[f"delete-{version}"], timeout_ms=10_000)
        k.ask(request, version, "by name")
        k.ask(request, version, "it is gone")
    topic, other = k.topic("delete-by-id"), k.topic("delete-by-name")
    by_id = DeleteTopicsRequest([DeleteTopicState(None, topic.id)], timeout_ms=10_000)
    k.ask(by_id, 6, "by id")
    k.ask(by_id, 6, "the id is gone")
    k.ask(DeleteTopicsRequest([DeleteTopicState(other.name, NO_ID)], timeout_ms=10_000), 6, "by name")
    k.ask(DeleteTopicsRequest([DeleteTopicState(None, NO_ID)], timeout_ms=10_000), 6, "neither")
    k.ask(DeleteTopicsRequest([DeleteTopicState("both", bytes(range(16)))], timeout_ms=10_000), 6, "both")
    last = k.topic("delete-twice")
    twice = [DeleteTopicState(last.name, NO_ID), DeleteTopicState(last.name, NO_ID)]
    k.ask(DeleteTopicsRequest(twice, timeout_ms=10_000), 6, "one name twice")
    both = [DeleteTopicState(last.name, NO_ID), DeleteTopicState(None, last.id)]
    k.ask(DeleteTopicsRequest(both, timeout_ms=10_000), 6, "one topic by name and by id")
    k.ask(
        DeleteTopicsRequest([DeleteTopicState("not valid", NO_ID)], timeout_ms=10_000),
        6,
        "an invalid name",
    )
    k.ask(DeleteTopicsRequest([], timeout_ms=10_000), 6, "no topics")


@story("Partitions are added and never removed")
def create_partitions(k: Narrator) -> None:
    topic = k.topic("widen", 2)

    def widen(count: int, name: str = topic.name, **settings: bool) -> CreatePartitionsRequest:
        return CreatePartitionsRequest([CreatePartitionsTopic(name, count, None)], 10_000, **settings)

    k.ask(widen(5, validate_only=True), 3, "to 5, validate only")
    for version in range(4):
        k.ask(widen(3 + version), version, "one more")
    for count in (6, 2, 0, -1):
        k.ask(widen(count), 3, f"to {count}, where there are 6")
    k.ask(widen(3, "widen-missing"), 3, "an unknown topic")
    k.ask(widen(3, "not valid"), 3, "an invalid topic name")
    twice = [CreatePartitionsTopic(topic.name, 7, None), CreatePartitionsTopic(topic.name, 8, None)]
    k.ask(CreatePartitionsRequest(twice, 10_000), 3, "one topic twice")
    wishes: list[list[list[int]]] = [[], [[]], [[4711]], [[4711], [4712]]]
    for nodes in wishes:
        places = [CreatePartitionsAssignment(places) for places in nodes]
        wish = CreatePartitionsTopic(topic.name, 7, places)
        k.ask(CreatePartitionsRequest([wish], 10_000), 3, f"placed by hand on {nodes}")
    k.wait_for_leaders(topic.name, 6)
