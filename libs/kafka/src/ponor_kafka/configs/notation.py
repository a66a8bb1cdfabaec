"""Parser of the notation for settings.

A setting has two or three lines:

    NAME: TYPE = DEFAULT; RULE; SCOPE; unlisted
      EFFECT: DOC
      note: NOTE

An empty DEFAULT is an empty text; `null` means that there is no default. RULE, SCOPE and `unlisted` are
optional; a broker setting without SCOPE is read-only. Rules: `LOW..`, `LOW..HIGH`, `LOW..HIGH or N`, `a | b`
(one of these), `any case: A | B`, `items: a | b` (a list of these), `items` (no empty item), `not empty`,
`share reset`, `throttled replicas`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from ponor_kafka.configs.definition import ConfigDefinition, ConfigType, Effect, Scope
from ponor_kafka.configs.value_rules import (
    Bounds,
    Choice,
    FilledItems,
    NotEmpty,
    ShareReset,
    ThrottledReplicas,
    ValueRule,
)

_SCOPES: Final = {Scope.PER_BROKER.value: Scope.PER_BROKER, Scope.CLUSTER_WIDE.value: Scope.CLUSTER_WIDE}


def read_definitions(text: str, scope: Scope) -> Iterator[ConfigDefinition]:
    """Parse settings; `scope` is the default scope."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        end = at + 2
        if end < len(lines) and lines[end].startswith("  note: "):
            end += 1
        yield _definition(lines[at:end], scope)
        at = end


def _definition(lines: list[str], scope: Scope) -> ConfigDefinition:
    name, _, rest = lines[0].partition(": ")
    effect, _, doc = lines[1].strip().partition(": ")
    note = lines[2].strip().removeprefix("note: ") if len(lines) > 2 else ""
    kind, _, rest = rest.partition(" =")
    default, *parts = map(str.strip, rest.split(";"))
    rule: ValueRule | None = None
    for part in parts:
        if part in _SCOPES:
            scope = _SCOPES[part]
        elif part != "unlisted":
            rule = _rule(part)
    return ConfigDefinition(
        name=name,
        type=ConfigType[kind.upper()],
        default=None if default == "null" else default,
        rule=rule,
        scope=scope,
        effect=Effect(effect),
        doc=doc,
        note=note,
        unlisted="unlisted" in parts,
    )


_NAMED_RULES: Final[Mapping[str, ValueRule]] = MappingProxyType(
    {
        "items": FilledItems(),
        "not empty": NotEmpty(),
        "share reset": ShareReset(),
        "throttled replicas": ThrottledReplicas(),
    }
)


def _rule(text: str) -> ValueRule:
    if text in _NAMED_RULES:
        return _NAMED_RULES[text]
    kind, colon, words = text.partition(": ")
    if colon:
        assert kind in {"items", "any case"}, f"unknown rule {text!r}"
        return Choice(tuple(words.split(" | ")), any_case=kind == "any case")
    if ".." in text:
        bounds, _, also = text.partition(" or ")
        low, _, high = bounds.partition("..")
        return Bounds(_number(low), _number(high) if high else None, int(also) if also else None)
    return Choice(tuple(text.split(" | ")))


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
