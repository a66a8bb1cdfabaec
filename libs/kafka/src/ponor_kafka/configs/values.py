"""Parsing of setting values by type, as in org.apache.kafka.common.config.ConfigDef, and their canonical
text.

Error messages are Kafka's because clients show them to users.
"""

from __future__ import annotations

import math
import re
from typing import Final

from ponor_kafka.configs.definition import ConfigDefinition, ConfigError, ConfigType
from ponor_kafka.configs.value_rules import Value

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
_BITS: Final = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}


def parse_value(definition: ConfigDefinition, text: str) -> Value:
    """Parse a value of this setting.

    Raises:
        ConfigError: the value has the wrong type or violates the rule.
    """
    stripped = text.strip()
    try:
        value = _of_type(definition.type, stripped)
    except ValueError as error:
        raise _invalid(definition, stripped, str(error)) from error
    problem = None if definition.rule is None else definition.rule.problem(value)
    if problem is not None:
        shown = stripped
        if isinstance(value, list) and definition.rule is not None and value:
            shown = next((item for item in value if definition.rule.problem([item])), stripped)
        raise _invalid(definition, shown, problem)
    return value


def kept_text(definition: ConfigDefinition, text: str) -> str:
    """Return the canonical text of a value; equal for equivalent texts.

    Raises:
        ConfigError: as for `parse_value`.
    """
    value = parse_value(definition, text)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(value)
    return str(value) if isinstance(value, int) else text.strip()


def list_items(text: str) -> list[str]:
    """Split a list into trimmed items; an empty text has none."""
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _of_type(kind: ConfigType, text: str) -> Value:
    """Parse by type. Raises ValueError with Kafka's message."""
    if kind in _BITS:
        number = int(text) if _WHOLE.fullmatch(text) else None
        limit = 1 << _BITS[kind]
        if number is None or not -limit <= number < limit:
            raise ValueError(f"Not a number of type {kind.name}")
        return number
    if kind is ConfigType.BOOLEAN:
        if text.lower() not in {"true", "false"}:
            raise ValueError("Expected value to be either true or false")
        return text.lower() == "true"
    if kind is ConfigType.DOUBLE:
        return _fraction(text)
    return list_items(text) if kind is ConfigType.LIST else text


def _fraction(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if math.isnan(number) or "_" in text:  # not a number, or a form specific to Python
        raise ValueError("Not a number of type DOUBLE")
    return number


def _invalid(definition: ConfigDefinition, text: str, problem: str) -> ConfigError:
    return ConfigError(f"Invalid value {text} for configuration {definition.name}: {problem}")
