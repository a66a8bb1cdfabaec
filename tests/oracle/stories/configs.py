"""Configs: described, changed, reset."""

from __future__ import annotations

from collections.abc import Sequence

from ponor_kafka.messages.alter_configs import AlterableConfig as Whole
from ponor_kafka.messages.alter_configs import AlterConfigsRequest
from ponor_kafka.messages.alter_configs import AlterConfigsResource as WholeResource
from ponor_kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ponor_kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ponor_kafka.messages.list_config_resources import ListConfigResourcesRequest

from tests.oracle.narrator import Narrator
from tests.oracle.story import story

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe(
    name: str, *keys: str, kind: int = TOPIC, synonyms: bool = False, documentation: bool = False
) -> DescribeConfigsRequest:
    """Describe one resource; without keys, all of it."""
    return DescribeConfigsRequest(
        [DescribeConfigsResource(kind, name, list(keys) or None)], synonyms, documentation
    )


def change(
    name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, validate: bool = False
) -> IncrementalAlterConfigsRequest:
    """Change single configs: (name, operation, value)."""
    rows = [AlterableConfig(*row) for row in changes]
    return IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, rows)], validate)


def replace(
    name: str, rows: Sequence[tuple[str, str | None]], *, kind: int = TOPIC, validate: bool = False
) -> AlterConfigsRequest:
    """Replace all configs of a resource."""
    return AlterConfigsRequest([WholeResource(kind, name, [Whole(*row) for row in rows])], validate)


@story("All configs of a topic: names, values, types, sources, synonyms")
def describe_topic_configs(k: Narrator) -> None:
    topic = k.topic("describe-topic", 1, {"retention.ms": "7200000", "cleanup.policy": "compact"})
    for version in range(1, 5):
        k.ask(describe(topic.name), version, "all")
    k.ask(describe(topic.name, synonyms=True, documentation=True), 4, "all, with synonyms and documentation")
    k.ask(describe(topic.name, "retention.ms", "segment.bytes", synonyms=True), 4, "two of them")
    k.ask(describe(topic.name, "no.such.config"), 4, "an unknown config")
    k.ask(
        DescribeConfigsRequest([DescribeConfigsResource(TOPIC, topic.name, [])]), 4, "an empty list of names"
    )


@story("All configs of the broker")
def describe_broker_configs(k: Narrator) -> None:
    k.ask(describe("", kind=BROKER, synonyms=True), 4, "the defaults of the cluster")
    k.ask(describe("", "num.partitions", "log.retention.ms", kind=BROKER), 4, "two of the cluster")
    for name in ("4711", "not a number", "-1"):
        k.ask(describe(name, kind=BROKER), 4, f"the broker {name!r}, which is not there")


@story("Resources that cannot be described")
def describe_configs_errors(k: Narrator) -> None:
    k.ask(describe("describe-missing"), 4, "an unknown topic")
    k.ask(describe("not valid"), 4, "an invalid topic name")
    k.ask(describe(""), 4, "a topic without a name")
    k.ask(describe("x", kind=1), 4, "an invalid resource type")
    k.ask(describe("x", kind=0), 4, "the unknown resource type")
    k.ask(describe("x", kind=99), 4, "resource type 99")
    k.ask(DescribeConfigsRequest([]), 4, "no resources")


@story("Configs of a topic are changed individually and described")
def alter_topic_configs(k: Narrator) -> None:
    topic = k.topic("alter-topic")
    for version in (0, 1):
        k.ask(
            change(topic.name, ("retention.ms", SET, "1000000"), ("segment.bytes", SET, "2000000")),
            version,
            "two are set",
        )
    k.settle()
    k.ask(describe(topic.name, "retention.ms", "segment.bytes", synonyms=True), 4, "they are read")
    k.ask(change(topic.name, ("retention.ms", DELETE, None)), 1, "one goes back to its default")
    k.ask(change(topic.name, ("retention.bytes", DELETE, None)), 1, "one that was never set")
    k.ask(change(topic.name, ("cleanup.policy", APPEND, "compact")), 1, "a list grows")
    k.settle()
    k.ask(describe(topic.name, "cleanup.policy", "retention.ms"), 4, "delete,compact")
    k.ask(change(topic.name, ("cleanup.policy", APPEND, "compact")), 1, "grows by what it has")
    k.ask(change(topic.name, ("cleanup.policy", SUBTRACT, "delete")), 1, "a list shrinks")
    k.ask(change(topic.name, ("cleanup.policy", SUBTRACT, "delete")), 1, "shrinks by what it has not")
    k.settle()
    k.ask(describe(topic.name, "cleanup.policy"), 4, "compact")
    k.ask(change(topic.name, ("max.message.bytes", SET, "5000"), validate=True), 1, "validate only")
    k.settle()
    k.ask(describe(topic.name, "max.message.bytes"), 4, "was not changed")


@story("Refused changes change nothing")
def alter_configs_errors(k: Narrator) -> None:
    topic = k.topic("alter-errors")
    k.ask(change(topic.name, ("no.such.config", SET, "1")), 1, "an unknown config")
    k.ask(change(topic.name, ("retention.ms", SET, "soon")), 1, "not a number")
    k.ask(change(topic.name, ("retention.ms", SET, "-2")), 1, "out of range")
    k.ask(change(topic.name, ("retention.ms", SET, None)), 1, "a null value")
    k.ask(change(topic.name, ("retention.ms", APPEND, "5")), 1, "a number does not grow")
    k.ask(change(topic.name, ("retention.ms", 7, "5")), 1, "an invalid operation")
    k.ask(
        change(topic.name, ("retention.ms", SET, "5000"), ("retention.ms", DELETE, None)),
        1,
        "one config twice",
    )
    k.ask(
        change(topic.name, ("segment.ms", SET, "5000"), ("segment.bytes", SET, "x")),
        1,
        "a good one beside a bad one",
    )
    k.ask(change(topic.name, ("cleanup.policy", SET, "")), 1, "an empty list")
    k.ask(change("alter-missing", ("retention.ms", SET, "5000")), 1, "an unknown topic")
    k.ask(change("", ("retention.ms", SET, "5000")), 1, "a topic without a name")
    k.ask(change("x", ("a", SET, "5"), kind=1), 1, "an invalid resource type")
    k.ask(change(topic.name), 1, "no changes")
    k.ask(IncrementalAlterConfigsRequest([]), 1, "no resources")
    row = AlterConfigsResource(TOPIC, topic.name, [AlterableConfig("segment.ms", SET, "7000")])
    k.ask(IncrementalAlterConfigsRequest([row, row]), 1, "one resource twice")
    k.ask(
        describe(topic.name, "retention.ms", "segment.ms", "segment.bytes", "cleanup.policy"),
        4,
        "what is there now",
    )


@story("All configs of a topic are replaced by AlterConfigs")
def replace_configs(k: Narrator) -> None:
    topic = k.topic("replace", 1, {"retention.ms": "1000000", "segment.bytes": "2000000"})
    for version in (0, 1, 2):
        k.ask(replace(topic.name, [("retention.ms", "3000000")]), version, "only retention.ms stays")
    k.settle()
    k.ask(describe(topic.name, "retention.ms", "segment.bytes"), 4, "as replaced")
    k.ask(replace(topic.name, [("retention.ms", "x")]), 2, "a bad value")
    k.ask(replace(topic.name, [("retention.ms", None)]), 2, "a null value")
    k.ask(replace(topic.name, [], validate=True), 2, "all taken away, validate only")
    k.ask(replace(topic.name, []), 2, "all taken away")
    k.ask(replace("replace-missing", [("retention.ms", "1")]), 2, "an unknown topic")
    k.settle()
    k.ask(describe(topic.name, "retention.ms", "segment.bytes"), 4, "defaults")


@story("Dynamic configs of all brokers")
def alter_broker_configs(k: Narrator) -> None:
    k.ask(change("", ("log.cleaner.threads", SET, "2"), kind=BROKER), 1, "for all brokers")
    k.settle()
    k.ask(describe("", "log.cleaner.threads", kind=BROKER, synonyms=True), 4, "is read")
    k.ask(change("", ("log.cleaner.threads", DELETE, None), kind=BROKER), 1, "taken back")
    k.ask(change("", ("log.cleaner.threads", SET, "0"), kind=BROKER), 1, "out of range")
    k.ask(change("", ("node.id", SET, "7"), kind=BROKER), 1, "one that cannot change")
    k.ask(change("", ("no.such.config", SET, "7"), kind=BROKER), 1, "an unknown config")
    k.ask(change("4711", ("log.cleaner.threads", SET, "2"), kind=BROKER), 1, "a broker that is not there")
    k.ask(change("not a number", ("log.cleaner.threads", SET, "2"), kind=BROKER), 1, "an invalid broker id")


@story("Which resources have configs")
def list_config_resources(k: Narrator) -> None:
    k.ask(ListConfigResourcesRequest(), 0, "client metrics, of which there are none")
    k.ask(ListConfigResourcesRequest([CLIENT_METRICS]), 1, "client metrics")
    k.ask(ListConfigResourcesRequest([BROKER]), 1, "brokers")
    k.ask(ListConfigResourcesRequest([GROUP]), 1, "groups")
    k.ask(ListConfigResourcesRequest([99]), 1, "an unknown type")
