"""Dynamic configs of groups: described, changed, refused, listed (KIP-848, KIP-932, KIP-1071)."""

from __future__ import annotations

from ponor_kafka.messages.alter_configs import AlterableConfig as Whole
from ponor_kafka.messages.alter_configs import AlterConfigsRequest
from ponor_kafka.messages.alter_configs import AlterConfigsResource as WholeResource
from ponor_kafka.messages.list_config_resources import ListConfigResourcesRequest

from tests.oracle.narrator import Narrator
from tests.oracle.stories.configs import APPEND, DELETE, GROUP, SET, change, describe
from tests.oracle.story import story


@story("All configs of a group")
def describe_group_configs(k: Narrator) -> None:
    k.ask(describe("group-without", kind=GROUP, synonyms=True), 4, "a group without own configs")
    k.ask(describe("group-without", "share.auto.offset.reset", kind=GROUP), 4, "one config")
    k.ask(describe("group-without", "no.such.config", kind=GROUP), 4, "an unknown config")
    k.ask(describe("", kind=GROUP), 4, "without a name")


@story("Configs of a group: set, read, listed, taken away")
def alter_group_configs(k: Narrator) -> None:
    name = "group-of-story"
    changes = [
        ("consumer.session.timeout.ms", SET, "50000"),
        ("share.auto.offset.reset", SET, "earliest"),
        ("share.record.lock.duration.ms", SET, "15000"),
        ("streams.num.standby.replicas", SET, "2"),
    ]
    k.ask(change(name, *changes, kind=GROUP, validate=True), 1, "validate only")
    k.ask(ListConfigResourcesRequest([GROUP]), 1, "no group has configs")
    k.ask(change(name, *changes, kind=GROUP), 1, "set")
    k.settle()
    k.ask(describe(name, *(each[0] for each in changes), kind=GROUP, synonyms=True), 4, "is read")
    k.ask(ListConfigResourcesRequest([GROUP]), 1, "the group is listed")
    k.ask(change(name, ("share.auto.offset.reset", SET, "by_duration:PT1H"), kind=GROUP), 1, "a duration")
    k.ask(change(name, ("streams.num.standby.replicas", DELETE, None), kind=GROUP), 1, "take one away")
    k.settle()
    k.ask(describe(name, *(each[0] for each in changes), kind=GROUP, synonyms=True), 4, "is read again")
    k.ask(change(name, *((each[0], DELETE, None) for each in changes), kind=GROUP), 1, "take all away")
    k.settle()
    k.ask(describe(name, *(each[0] for each in changes), kind=GROUP), 4, "defaults")
    k.ask(ListConfigResourcesRequest([GROUP]), 1, "the group is not listed")


@story("Changes of a group's configs that are refused")
def refuse_group_configs(k: Narrator) -> None:
    def refused(name: str, value: str | None, title: str, kind: int = SET) -> None:
        k.ask(change("group-refused", (name, kind, value), kind=GROUP), 1, title)

    k.ask(change("", ("consumer.session.timeout.ms", SET, "50000"), kind=GROUP), 1, "without a name")
    refused("no.such.config", "1", "an unknown config")
    refused("no.such.config", None, "an unknown config is taken away", DELETE)
    refused("consumer.session.timeout.ms", "soon", "no number")
    refused("consumer.session.timeout.ms", "0", "below the range of the type")
    refused("consumer.session.timeout.ms", "1000", "below the broker's minimum")
    refused("consumer.session.timeout.ms", "70000", "above the broker's maximum")
    refused("consumer.session.timeout.ms", "50000", "append to a number", APPEND)
    refused("consumer.session.timeout.ms", None, "no value")
    refused("consumer.heartbeat.interval.ms", "20000", "above the broker's maximum")
    refused("consumer.assignment.interval.ms", "20000", "above the broker's maximum")
    refused("share.record.lock.duration.ms", "70000", "above the broker's maximum")
    refused("share.delivery.count.limit", "11", "above the broker's maximum")
    refused("share.partition.max.record.locks", "5000", "above the broker's maximum")
    refused("share.auto.offset.reset", "none", "an unknown reset")
    refused("share.auto.offset.reset", "EARLIEST", "in capitals")
    refused("share.auto.offset.reset", "by_duration:-PT1H", "a negative duration")
    refused("share.auto.offset.reset", "by_duration:soon", "no duration")
    refused("share.auto.offset.reset", "by_duration", "without a duration")
    refused("share.isolation.level", "serializable", "an unknown level")
    refused("share.renew.acknowledge.enable", "maybe", "no boolean")
    refused("streams.num.standby.replicas", "3", "above the broker's maximum")
    refused("streams.initial.rebalance.delay.ms", "-1", "negative")
    k.ask(ListConfigResourcesRequest([GROUP]), 1, "nothing was set")


@story("All configs of a group replaced")
def replace_group_configs(k: Narrator) -> None:
    def replace(name: str, *rows: tuple[str, str | None], validate: bool = False) -> AlterConfigsRequest:
        return AlterConfigsRequest([WholeResource(GROUP, name, [Whole(*row) for row in rows])], validate)

    name, timeout = "group-replaced", "consumer.session.timeout.ms"
    k.ask(replace(name, (timeout, "50000"), validate=True), 2, "validate only")
    k.ask(replace(name, (timeout, "50000")), 2, "set")
    k.settle()
    k.ask(describe(name, timeout, kind=GROUP), 4, "is read")
    k.ask(replace(name, (timeout, "1")), 2, "out of range")
    k.ask(replace("", (timeout, "50000")), 2, "without a name")
    k.ask(replace(name), 2, "all taken away")
    k.settle()
    k.ask(describe(name, timeout, kind=GROUP), 4, "the default")
