"""Types that describe one setting. The data is in `topic` and `broker_*`, parsed by `notation`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from ponor_kafka.configs.value_rules import ValueRule


class ConfigType(IntEnum):
    """Types of settings, with their numbers in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Effect(Enum):
    """Effect of a setting in Ponor."""

    IN_FORCE = "in force"
    NONE = "no effect"
    FIXED = "fixed"


class Scope(Enum):
    """Scope of dynamic changes of a broker setting (KIP-226); every setting of topics and groups
    is dynamic.
    """

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"
    TOPIC = "topic"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """A setting.

    Attributes:
        default: Kafka's default as text; None if there is none.
        rule: restricts the values of the type; None for no restriction.
        doc: one sentence.
        note: remark about its effect, or empty.
        unlisted: DescribeConfigs returns the setting only if it is set.
    """

    name: str
    type: ConfigType
    default: str | None
    rule: ValueRule | None
    scope: Scope
    effect: Effect
    doc: str
    note: str = ""
    unlisted: bool = False

    @property
    def is_sensitive(self) -> bool:
        """Whether its value is hidden."""
        return self.type is ConfigType.PASSWORD

    @property
    def is_dynamic(self) -> bool:
        """Whether it can be changed without a restart."""
        return self.scope is not Scope.READ_ONLY


class ConfigError(Exception):
    """A setting or value is invalid. The client receives the message: Kafka's text where known."""
