"""The catalogue of settings: complete, consistent, and equal to Kafka in parsing values and changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_kafka.configs.catalogue import (
    BROKER_CONFIGS,
    GROUP_BOUNDS,
    GROUP_CONFIGS,
    GROUP_SYNONYMS,
    TOPIC_CONFIGS,
    TOPIC_SYNONYMS,
    broker_synonyms,
    topic_values,
)
from ponor_kafka.configs.changes import (
    ChangeKind,
    ConfigChange,
    changed_broker_configs,
    changed_topic_configs,
    checked_topic_configs,
)
from ponor_kafka.configs.definition import ConfigDefinition, ConfigError, ConfigType
from ponor_kafka.configs.value_rules import reset_duration_ms
from ponor_kafka.configs.values import kept_text, list_items, parse_value

KAFKA_TOPIC_SETTINGS = 33
KAFKA_BROKER_SETTINGS = 340
"""From a description by a Kafka 4.3.1 broker."""
DEFINITIONS = [*TOPIC_CONFIGS.values(), *GROUP_CONFIGS.values(), *BROKER_CONFIGS.values()]


def test_catalogue_has_every_setting_of_kafka() -> None:
    assert len([each for each in TOPIC_CONFIGS.values() if not each.unlisted]) == KAFKA_TOPIC_SETTINGS
    assert len([each for each in BROKER_CONFIGS.values() if not each.unlisted]) == KAFKA_BROKER_SETTINGS
    assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each.name)
def test_default_is_valid_and_canonical(definition: ConfigDefinition) -> None:
    assert definition.doc.endswith(".")
    if definition.default is not None:
        assert kept_text(definition, definition.default) == definition.default


def test_synonyms_are_settings_and_agree_with_the_topic_default() -> None:
    for name, synonyms in TOPIC_SYNONYMS.items():
        topic = TOPIC_CONFIGS[name]
        for synonym in synonyms:
            broker = BROKER_CONFIGS[synonym.name]
            assert synonym.name in broker_synonyms(synonym.name)
            if broker.default is not None:
                assert topic_values({synonym.name: broker.default}) == {name: topic.default}
    without = set(TOPIC_CONFIGS) - set(TOPIC_SYNONYMS)
    assert without == {
        "follower.replication.throttled.replicas",
        "internal.segment.bytes",
        "leader.replication.throttled.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }


def test_units_of_synonyms() -> None:
    assert topic_values({"log.retention.hours": "2", "log.retention.minutes": "7"}) == {
        "retention.ms": "420000"
    }
    assert topic_values({"log.retention.hours": "2", "log.retention.ms": "5"}) == {"retention.ms": "5"}
    assert topic_values({"log.retention.hours": "-1"}) == {"retention.ms": "-1"}
    assert topic_values({"node.id": "1"}) == {}


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("retention.ms", "abc", "Not a number of type LONG"),
        ("retention.ms", "-5", "Value must be at least -1"),
        ("retention.ms", "99999999999999999999999", "Not a number of type LONG"),
        ("retention.ms", "1_0", "Not a number of type LONG"),
        ("max.message.bytes", "99999999999", "Not a number of type INT"),
        ("segment.bytes", "100", "Value must be at least 1048576"),
        ("cleanup.policy", "foo", "String must be one of: compact, delete"),
        (
            "compression.type",
            "foo",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("compression.lz4.level", "18", "Value must be no more than 17"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
    ],
)
def test_error_messages_are_kafkas(name: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked_topic_configs({name: text})
    assert str(refused.value) == f"Invalid value {text} for configuration {name}: {problem}"


def test_values_are_stored_in_canonical_form() -> None:
    assert checked_topic_configs(
        {"retention.ms": " +5000 ", "cleanup.policy": " delete , compact", "preallocate": "TRUE"}
    ) == {"cleanup.policy": "delete,compact", "preallocate": "true", "retention.ms": "5000"}
    for name, text in (("leader.replication.throttled.replicas", "*"), ("cleanup.policy", "")):
        assert checked_topic_configs({name: text}) == {name: text}
    with pytest.raises(ConfigError, match="must be the literal"):
        checked_topic_configs({"leader.replication.throttled.replicas": "0:1,x"})


def test_append_and_subtract_change_lists() -> None:
    def change(present: dict[str, str], kind: ChangeKind, value: str) -> str:
        return changed_topic_configs(present, [ConfigChange("cleanup.policy", kind, value)])["cleanup.policy"]

    assert change({}, ChangeKind.APPEND, "compact") == "delete,compact", "append extends the default"
    assert change({"cleanup.policy": "compact"}, ChangeKind.APPEND, "compact") == "compact"
    assert change({"cleanup.policy": "delete,compact"}, ChangeKind.SUBTRACT, "delete") == "compact"
    assert change({"cleanup.policy": "compact"}, ChangeKind.SUBTRACT, "compact,delete") == ""
    for kind in (ChangeKind.APPEND, ChangeKind.SUBTRACT):
        with pytest.raises(
            ConfigError, match=f"Can't {kind.name} to key retention.ms because its type is not"
        ):
            changed_topic_configs({}, [ConfigChange("retention.ms", kind, "1")])


def test_invalid_change_refuses_all_changes() -> None:
    present = {"retention.ms": "1"}
    with pytest.raises(ConfigError, match="Unknown topic config name: nope"):
        changed_topic_configs(
            present,
            [ConfigChange("retention.ms", ChangeKind.SET, "2"), ConfigChange("nope", ChangeKind.SET, "1")],
        )
    assert present == {"retention.ms": "1"}
    assert changed_topic_configs(present, [ConfigChange("nope", ChangeKind.DELETE)]) == present
    with pytest.raises(ConfigError, match=r"min.compaction.lag.ms \(100\) > max.compaction.lag.ms \(50\)"):
        checked_topic_configs({"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "50"})
    with pytest.raises(ConfigError, match="Tiered Storage functionality is disabled"):
        checked_topic_configs({"remote.storage.enable": "true"})


@pytest.mark.parametrize(
    ("name", "of_all", "problem"),
    [
        ("nope", True, "Unknown broker config name: nope"),
        ("log.dirs", False, r"Cannot update these configs dynamically: \[log.dirs\]"),
        ("ssl.keystore.type", False, "only per-listener"),
        ("listeners", True, "broker id must be specified"),
    ],
)
def test_static_broker_settings_are_refused(name: str, of_all: bool, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        changed_broker_configs({}, [ConfigChange(name, ChangeKind.SET, "1")], of_all_brokers=of_all)


def test_dynamic_settings_of_brokers() -> None:
    changes = [
        ConfigChange("log.retention.ms", ChangeKind.SET, " 5 "),
        ConfigChange("follower.replication.throttled.rate", ChangeKind.SET, "10"),
        ConfigChange("log.dirs", ChangeKind.DELETE),
    ]
    after = changed_broker_configs({"message.max.bytes": "7"}, changes, of_all_brokers=True)
    assert after == {
        "follower.replication.throttled.rate": "10",
        "log.retention.ms": "5",
        "message.max.bytes": "7",
    }
    replaced = changed_broker_configs(after, changes[:1], of_all_brokers=False, replace=True)
    assert replaced == {"log.retention.ms": "5"}


def _valid_text(definition: ConfigDefinition) -> st.SearchStrategy[str]:
    """Generate valid values of a topic setting in the forms that clients use."""
    if definition.type in {ConfigType.INT, ConfigType.LONG}:
        return st.integers(5, 9).map(lambda number: f" {number} ")
    if definition.type is ConfigType.BOOLEAN:
        return st.just("false")
    if definition.name == "cleanup.policy":
        return st.sampled_from(("delete", "compact", "compact, delete", ""))
    return st.just(definition.default or "")


SETTABLE = [
    each
    for each in TOPIC_CONFIGS.values()
    if each.name not in {"segment.bytes", "min.compaction.lag.ms", "max.compaction.lag.ms"}
]


@st.composite
def changes(draw: st.DrawFn) -> list[ConfigChange]:
    found: dict[str, ConfigChange] = {}
    for definition in draw(st.lists(st.sampled_from(SETTABLE), max_size=8)):
        kinds = (
            list(ChangeKind) if definition.type is ConfigType.LIST else [ChangeKind.SET, ChangeKind.DELETE]
        )
        change = ConfigChange(definition.name, draw(st.sampled_from(kinds)), draw(_valid_text(definition)))
        found[definition.name] = change
    return list(found.values())


@given(changes(), changes())
def test_changes_are_deterministic_idempotent_and_always_valid(
    first: list[ConfigChange], second: list[ConfigChange]
) -> None:
    present = changed_topic_configs({}, first)
    after = changed_topic_configs(present, second)
    assert after == changed_topic_configs(present, list(reversed(second))), (
        "the order of names must not matter"
    )
    assert after == changed_topic_configs(after, second), "a repeated change must have no effect"
    assert after == checked_topic_configs(after), "the result of a change must be valid input"
    assert list(after) == sorted(after)
    touched = {change.name for change in second}
    assert {name: text for name, text in after.items() if name not in touched} == {
        name: text for name, text in present.items() if name not in touched
    }
    for change in second:
        if change.kind is ChangeKind.DELETE:
            assert change.name not in after
        elif change.kind is ChangeKind.APPEND:
            assert set(list_items(change.value)) <= set(list_items(after[change.name]))
        elif change.kind is ChangeKind.SUBTRACT:
            assert not set(list_items(change.value)) & set(list_items(after[change.name]))


@given(st.sampled_from(DEFINITIONS), st.text(max_size=20))
def test_any_text_is_parsed_or_refused(definition: ConfigDefinition, text: str) -> None:
    try:
        kept = kept_text(definition, text)
    except ConfigError:
        return
    assert parse_value(definition, kept) == parse_value(definition, text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("by_duration:PT1H", 3_600_000),
        ("by_duration:p1dt2h3m4.5s", 93_784_500),
        ("by_duration:PT-0.25S", -250),
        ("by_duration:-P1DT-1H", -82_800_000),
        ("by_duration:PT0S", 0),
        ("by_duration:P", None),
        ("by_duration:P1DT", None),
        ("by_duration:1H", None),
        ("by_duration", None),
        ("earliest", None),
    ],
)
def test_durations_of_a_reset_have_the_form_of_java(text: str, duration_ms: int | None) -> None:
    assert reset_duration_ms(text) == duration_ms


def test_every_bound_of_a_group_setting_is_a_broker_setting() -> None:
    assert len(GROUP_BOUNDS) == 25
    assert {each.name for each in GROUP_BOUNDS if each.bound.endswith("max.standby.replicas")} == {
        "streams.num.standby.replicas"
    }
    assert GROUP_CONFIGS.keys() - GROUP_SYNONYMS.keys() == {
        "share.auto.offset.reset",
        "share.isolation.level",
        "share.renew.acknowledge.enable",
    }
