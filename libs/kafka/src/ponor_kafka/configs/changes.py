"""Changes of settings: KIP-339's operations and the rules that span several settings. Pure functions.

The controller validates changes with them. A replay of the controller's log does not use them, because the
log contains the resulting settings. Error messages are Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from ponor_kafka.configs.catalogue import BROKER_CONFIGS, GROUP_BOUNDS, GROUP_CONFIGS, TOPIC_CONFIGS
from ponor_kafka.configs.definition import ConfigDefinition, ConfigError, ConfigType, Scope
from ponor_kafka.configs.values import kept_text, list_items

_SECURITY_PREFIXES: Final = ("ssl.", "sasl.")
_LISTENER_ONLY_EXCEPT: Final = frozenset({"sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol"})


class ChangeKind(IntEnum):
    """Kinds of changes, with their numbers in IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """Change of one setting. `value` is ignored for DELETE."""

    name: str
    kind: ChangeKind
    value: str = ""


def changed_topic_configs(
    present: Mapping[str, str], changes: Iterable[ConfigChange], *, replace: bool = False
) -> dict[str, str]:
    """Apply changes to a topic's own settings; return them sorted.

    With `replace`, settings that are not in `changes` are removed.

    Raises:
        ConfigError: a change or the result is invalid.
    """
    changes = list(changes)
    for change in changes:
        if change.kind is not ChangeKind.DELETE and change.name not in TOPIC_CONFIGS:
            raise ConfigError(f"Unknown topic config name: {change.name}")
    after = _changed(TOPIC_CONFIGS, {} if replace else present, changes)
    _check_topic(after)
    return after


def checked_topic_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """Validate the settings of a new topic; return them in canonical form.

    Raises:
        ConfigError: a setting is invalid.
    """
    changes = [ConfigChange(name, ChangeKind.SET, configs[name]) for name in sorted(configs)]
    return changed_topic_configs({}, changes)


def changed_broker_configs(
    present: Mapping[str, str],
    changes: Iterable[ConfigChange],
    *,
    of_all_brokers: bool,
    replace: bool = False,
) -> dict[str, str]:
    """Apply changes to the dynamic settings of a broker, or of all brokers.

    Otherwise like `changed_topic_configs`.
    """
    changes = list(changes)
    for change in changes:
        if change.kind is not ChangeKind.DELETE:
            _check_dynamic(change.name, of_all_brokers=of_all_brokers)
    return _changed(BROKER_CONFIGS, {} if replace else present, changes)


def changed_group_configs(
    present: Mapping[str, str], changes: Iterable[ConfigChange], *, replace: bool = False
) -> dict[str, str]:
    """Apply changes to a group's own settings. Otherwise like `changed_topic_configs`."""
    changes = list(changes)
    for change in changes:
        if change.kind is not ChangeKind.DELETE and change.name not in GROUP_CONFIGS:
            raise ConfigError(f"Unknown group config name: {change.name}")
    after = _changed(GROUP_CONFIGS, {} if replace else present, changes)
    _check_group(after)
    return after


def _changed(
    definitions: Mapping[str, ConfigDefinition], present: Mapping[str, str], changes: Iterable[ConfigChange]
) -> dict[str, str]:
    after = dict(present)
    for change in changes:
        if change.kind is ChangeKind.DELETE:
            after.pop(change.name, None)
            continue
        definition = definitions[change.name]
        if change.kind is ChangeKind.SET:
            after[change.name] = kept_text(definition, change.value)
            continue
        if definition.type is not ConfigType.LIST:
            raise ConfigError(f"Can't {change.kind.name} to key {change.name} because its type is not LIST.")
        items = list_items(after.get(change.name, definition.default or ""))
        if change.kind is ChangeKind.APPEND:
            items += [item for item in dict.fromkeys(list_items(change.value)) if item not in items]
        else:
            gone = list_items(change.value)
            items = [item for item in items if item not in gone]
        after[change.name] = kept_text(definition, ",".join(items))
    return dict(sorted(after.items()))


def _check_topic(configs: Mapping[str, str]) -> None:
    """Check the rules that span several settings."""
    low, high = (
        int(configs.get(name, TOPIC_CONFIGS[name].default or "0"))
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if low > high:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        )
    if configs.get("remote.storage.enable") == "true":
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote"
            " log storage."
        )


def _check_group(configs: Mapping[str, str]) -> None:
    """Check the bounds that the brokers' settings set, and that members may miss a heartbeat."""
    for name, bound, is_lower in GROUP_BOUNDS:
        limit = int(BROKER_CONFIGS[bound].default or "0")
        if name in configs and (int(configs[name]) < limit if is_lower else int(configs[name]) > limit):
            relation = "greater" if is_lower else "less"
            raise ConfigError(f"{name} must be {relation} than or equal to {bound}")
    for kind in ("consumer", "share", "streams"):
        timeout, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        timeout_ms, interval_ms = (
            int(configs.get(name, GROUP_CONFIGS[name].default or "0")) for name in (timeout, interval)
        )
        if timeout_ms <= interval_ms:
            raise ConfigError(f"{timeout} must be greater than {interval}")


def _check_dynamic(name: str, *, of_all_brokers: bool) -> None:
    definition = BROKER_CONFIGS.get(name)
    if definition is None:
        raise ConfigError(f"Unknown broker config name: {name}")
    if definition.scope is Scope.READ_ONLY:
        raise ConfigError(f"Cannot update these configs dynamically: [{name}]")
    if name.startswith(_SECURITY_PREFIXES) and name not in _LISTENER_ONLY_EXCEPT:
        raise ConfigError(
            "These security configs can be dynamically updated only per-listener using the listener prefix:"
            f" [{name}]"
        )
    if of_all_brokers and definition.scope is Scope.PER_BROKER:
        raise ConfigError(
            f"Cannot update these configs at default cluster level, broker id must be specified: [{name}]"
        )
