"""Sources and descriptions of config values, and the configs of partitions."""

from __future__ import annotations

import pytest
from ponor_broker.configs.description import ConfigDescriptions
from ponor_broker.configs.sources import ConfigSources, Source
from ponor_broker.configs.static_values import NUMBERS, static_values
from ponor_broker.handlers.configs.describe_configs import DescribeConfigsHandler
from ponor_broker.partitions.topics.topic_config import WHOLE_NUMBERS, TopicConfig, TopicConfigs
from ponor_broker.settings import BrokerSettings
from ponor_broker.transactions.settings import TransactionSettings
from ponor_kafka.configs.catalogue import BROKER_CONFIGS, GROUP_CONFIGS, TOPIC_CONFIGS
from ponor_kafka.configs.definition import Effect
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
)
from ponor_metadata.nouns.nodes import ALL_BROKERS
from ponor_metadata.nouns.nodes import BROKER_CONFIGS as BROKER_CONFIGS_TABLE

from services.broker.tests.image_kit import NODE, ImageKit, context

TOPIC, BROKER, GROUP = 2, 4, 32


def values(kit: ImageKit, static: dict[str, str] | None = None) -> ConfigSources:
    return ConfigSources(lambda: kit.image, NODE, static or {})


def test_the_strongest_source_is_in_force_and_all_sources_are_listed() -> None:
    kit = ImageKit()
    sources = values(kit, {"log.retention.hours": "1"})
    assert sources.of_broker("log.retention.ms") == [], "Kafka shows a synonym's layers from its own name on"
    assert sources.topic_value("retention.ms", {}) == "3600000"
    kit.set_broker(ALL_BROKERS, log__retention__ms="5000")
    kit.set_broker(NODE, log__retention__ms="7")
    assert sources.of_topic("retention.ms", {"retention.ms": "3"}) == [
        ("retention.ms", "3", Source.DYNAMIC_TOPIC),
        ("log.retention.ms", "7", Source.DYNAMIC_BROKER),
        ("log.retention.ms", "5000", Source.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.hours", "1", Source.STATIC_BROKER),
        ("log.retention.hours", "168", Source.DEFAULT),
    ]
    assert sources.topic_value("retention.ms", {"retention.ms": "3"}) == "3"
    assert sources.topic_value("retention.ms", {}) == "7"
    assert sources.of_topic("leader.replication.throttled.replicas", {}) == []


def test_partitions_use_the_described_values() -> None:
    kit = ImageKit()
    static = {"message.max.bytes": "90"}
    configs = TopicConfigs(lambda: kit.image, NODE, static)
    sources = values(kit, static)
    kit.set_broker(ALL_BROKERS, log__retention__ms="5000", compression__type="zstd")
    topic = kit.put_topic("t", configs={"segment.ms": "11", "cleanup.policy": "compact"})
    config = configs.of(topic)
    for name, field in WHOLE_NUMBERS.items():
        assert str(getattr(config, field)) == sources.topic_value(name, topic.configs), name
    assert (config.compression, config.is_compacted, config.deletes_old) == ("zstd", True, False)
    assert configs.static_defaults == TopicConfig(message_bytes_max=90)


def test_equal_configs_are_one_object_and_changes_apply_immediately() -> None:
    kit = ImageKit()
    configs = TopicConfigs(lambda: kit.image, NODE)
    plain, other = kit.put_topic("a"), kit.put_topic("b")
    assert configs.of(plain) is configs.of(other) is configs.static_defaults
    assert configs.of(kit.put_topic("c", configs={"retention.ms": "1"})).retention_ms == 1
    kit.set_broker(NODE, log__retention__bytes="77")
    assert configs.of(plain).retention_bytes == 77
    assert configs.of(plain) is configs.of(other)
    kit.image[BROKER_CONFIGS_TABLE].delete(NODE)
    assert configs.of(plain) is configs.static_defaults


def test_settings_are_listed_under_kafkas_names() -> None:
    settings = BrokerSettings(segment_bytes=2_000_000, num_partitions=4)
    static = static_values(settings, NODE, host="h", port=9)
    assert static["log.segment.bytes"] == "2000000"
    assert static["num.partitions"] == "4"
    assert static["advertised.listeners"] == "PLAINTEXT://h:9"
    assert "log.roll.ms" not in static, "values equal to Kafka's default are omitted"
    for name in NUMBERS:
        assert BROKER_CONFIGS[name].effect is Effect.IN_FORCE, name
    assert TopicConfigs(lambda: ImageKit().image, NODE, static).static_defaults.segment_bytes == 2_000_000


def test_settings_of_transactions_are_listed_under_kafkas_names() -> None:
    names = {
        "add.partitions.to.txn.retry.backoff.max.ms": "transaction_add_retry_ms_max",
        "add.partitions.to.txn.retry.backoff.ms": "transaction_add_retry_ms",
        "transaction.max.timeout.ms": "transaction_timeout_ms_max",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "transactional_id_expiry_interval_ms",
        "transaction.state.log.load.buffer.size": "transaction_load_bytes_max",
        "transaction.state.log.num.partitions": "transaction_topic_partitions",
        "transactional.id.expiration.ms": "transactional_id_expiration_ms",
    }
    given = {field: 2_000 + number for number, field in enumerate(names.values())}
    settings = BrokerSettings(transactions=TransactionSettings(**given), producer_expiration_ms=9_999)
    static = static_values(settings, NODE, host="h", port=9)
    assert {name: static[name] for name in names} == {name: str(given[names[name]]) for name in names}
    assert static["producer.id.expiration.ms"] == "9999"
    defaults = static_values(BrokerSettings(), NODE, host="h", port=9)
    retries = {name for name in names if name.startswith("add.partitions.to.txn.retry")}
    assert names.keys() & defaults.keys() == retries, "other defaults are Kafka's"


async def _describe(
    kit: ImageKit, kind: int, name: str, *keys: str, version: int = 4
) -> DescribeConfigsResult:
    descriptions = ConfigDescriptions(values(kit, {"node.id": "7"}), {"receive_bytes_max": "5"})
    handler = DescribeConfigsHandler(kit.topics, descriptions, node_id=NODE)
    resource = DescribeConfigsResource(kind, name, keys or None)
    request = DescribeConfigsRequest([resource], include_synonyms=True, include_documentation=True)
    (result,) = (await handler.handle(request, context(version))).results
    return result


async def test_every_setting_is_described() -> None:
    kit = ImageKit()
    kit.put_topic("t")
    topic = await _describe(kit, TOPIC, "t")
    listed = [name for name, definition in TOPIC_CONFIGS.items() if not definition.unlisted]
    assert [each.name for each in topic.configs] == listed
    assert all(each.documentation and not each.read_only for each in topic.configs)
    broker = {each.name: each for each in (await _describe(kit, BROKER, "7")).configs}
    assert broker["ponor.receive_bytes_max"].value == "5"
    assert (broker["node.id"].value, broker["node.id"].config_source) == ("7", Source.STATIC_BROKER)
    secret = broker["ssl.keystore.password"]
    assert (secret.value, secret.is_sensitive, list(secret.synonyms)) == (None, True, [])
    assert len(broker) == len([each for each in BROKER_CONFIGS.values() if not each.unlisted]) + 1


async def test_a_group_s_own_configs_override_the_broker_s() -> None:
    kit = ImageKit()
    kit.set_group("g", share__auto__offset__reset="earliest", streams__num__standby__replicas="1")
    described = await _describe(kit, GROUP, "g")
    assert [each.name for each in described.configs] == list(GROUP_CONFIGS)
    found = {each.name: each for each in described.configs}
    reset, standby = found["share.auto.offset.reset"], found["streams.num.standby.replicas"]
    assert (reset.value, reset.config_source, reset.read_only) == ("earliest", Source.DYNAMIC_GROUP, False)
    assert [(each.name, each.value, each.source) for each in standby.synonyms] == [
        ("streams.num.standby.replicas", "1", Source.DYNAMIC_GROUP),
        ("group.streams.num.standby.replicas", "0", Source.DEFAULT),
    ]
    other = {each.name: each for each in (await _describe(kit, GROUP, "other")).configs}
    assert (other["share.auto.offset.reset"].value, kit.topics.groups_with_configs()) == ("latest", ["g"])
    assert (await _describe(kit, GROUP, "")).error_code == ErrorCode.INVALID_REQUEST


async def test_a_resource_named_repeatedly_is_described_once() -> None:
    """Otherwise a request of a few megabytes could have an answer of gigabytes."""
    kit = ImageKit()
    kit.put_topic("t")
    handler = DescribeConfigsHandler(kit.topics, ConfigDescriptions(values(kit, {}), {}), node_id=NODE)
    resources = [DescribeConfigsResource(kind, name) for kind, name in [(BROKER, "7"), (TOPIC, "t")] * 1_000]
    answer = await handler.handle(DescribeConfigsRequest(resources), context(4))
    assert [each.resource_name for each in answer.results] == ["7", "t"]


async def test_requested_keys_filter_and_the_default_of_all_brokers_lists_set_configs() -> None:
    kit = ImageKit()
    kit.put_topic("t", configs={"internal.segment.bytes": "100"})
    assert [each.name for each in (await _describe(kit, TOPIC, "t", "segment.ms", "nope")).configs] == [
        "segment.ms"
    ]
    assert "internal.segment.bytes" in [each.name for each in (await _describe(kit, TOPIC, "t")).configs]
    assert (await _describe(kit, BROKER, "")).configs == []
    kit.set_broker(ALL_BROKERS, follower__replication__throttled__rate="9")
    (rate,) = (await _describe(kit, BROKER, "")).configs
    assert (rate.name, rate.value, rate.config_source) == (
        "follower.replication.throttled.rate",
        "9",
        Source.DYNAMIC_DEFAULT_BROKER,
    )


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "8", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_unsupported_resources_are_refused(kind: int, name: str, code: ErrorCode) -> None:
    assert (await _describe(ImageKit(), kind, name)).error_code == code
