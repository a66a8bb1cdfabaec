"""One setting: what is known of it.

What lives here: the shapes. The facts are in `topic` and `broker_*`, in the notation that `notation` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from ponor_kafka.configs.value_rules import ValueRule


class ConfigType(IntEnum):
    """Numbers of DescribeConfigs (KIP-569)."""

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
    """What a setting does in Ponor."""

    IN_FORCE = "in force"
    NONE = "no effect"
    FIXED = "fixed"


class Scope(Enum):
    """Where a broker setting may be changed while the broker runs (KIP-226); of topics, all may be."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """A setting.

    Attributes:
        default: Kafka's default as text; None where there is none.
        rule: which values of the type are valid; None for all.
        doc: one sentence.
        note: what a reader must know about its effect, or empty.
        unlisted: described only where it was set.
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
        """Whether its value is never shown."""
        return self.type is ConfigType.PASSWORD

    @property
    def is_dynamic(self) -> bool:
        """Whether it can be changed without a restart."""
        return self.scope is not Scope.READ_ONLY


class ConfigError(Exception):
    """A setting or value that is refused; the message is what the client gets, in Kafka's words where they are known."""
