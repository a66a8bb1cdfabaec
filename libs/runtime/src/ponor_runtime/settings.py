"""Settings: frozen dataclasses, parsed from text and checked against declared bounds.

Values come from `--set NAME=VALUE` or a configuration file. Each service and library declares its settings in
its own dataclass, with `setting(default, within=(.., ..), unit=.., doc=..)`; the unit is omitted if the name
contains it (bytes, ms, percent). A settings dataclass may contain others, such as those of a service's
libraries; all fields share one flat set of names.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, get_type_hints

_T = TypeVar("_T")
_BYTE_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_UNITS_IN_NAMES: Final = {"bytes_per_s": "bytes/s", "bytes": "bytes", "ms": "ms", "percent": "%"}
_TRUTHS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class SettingError(ValueError):
    """A setting is unknown, malformed or out of bounds; the message names it and the accepted values."""


@dataclasses.dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as shown in the documentation and by `ponor`."""

    name: str
    kind: str
    default: object
    minimum: object
    maximum: object
    unit: str
    doc: str


def setting(
    default: Any,
    *,
    within: tuple[float, float | None] | None = None,
    unit: str = "",
    doc: str = "",
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare a dataclass field whose value lies within the bounds, both inclusive.

    Typed `Any`, like `dataclasses.field`, so that any field type accepts it.
    """
    low, high = within or (None, None)
    metadata = {"min": low, "max": high, "unit": unit, "doc": doc, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


def load(cls: type[_T], values: Mapping[str, object], *, accept_others: bool = False) -> _T:
    """Build settings from named values: text, or numbers and booleans from JSON.

    Args:
        cls: a frozen dataclass.
        values: by setting name; absent names keep their default.
        accept_others: ignore unknown names; the caller has checked them against the settings of all services.

    Raises:
        SettingError: names the setting and, if it is unknown, the nearest known name.
    """
    known = {name: (kind, field) for name, kind, field in _fields_of(cls)}
    if not accept_others:
        check_names(values, tuple(known))
    return _build(cls, {name: _read(name, *known[name], values[name]) for name in values if name in known})


def check_names(values: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Reject unknown names.

    Raises:
        SettingError: names the first unknown name and the nearest known one.
    """
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known settings: {', '.join(sorted(known))}"
            raise SettingError(f"unknown setting {name!r}; {hint}")


def describe(cls: type[Any]) -> list[SettingRow]:
    """Every setting of a class, in declaration order."""
    return [
        SettingRow(
            name=name,
            kind=kind.__name__,
            default=field.default,
            minimum=field.metadata.get("min"),
            maximum=field.metadata.get("max"),
            unit=_unit_of(name, field),
            doc=field.metadata.get("doc", ""),
        )
        for name, kind, field in _fields_of(cls)
    ]


def _unit_of(name: str, field: dataclasses.Field[Any]) -> str:
    """Return the declared unit, or the one that the name contains; empty for a plain number."""
    named = (unit for part, unit in _UNITS_IN_NAMES.items() if f"_{part}_" in f"{name}_")
    return field.metadata.get("unit") or next(named, "")


def describe_values(settings: object) -> list[tuple[SettingRow, object]]:
    """Every setting of an instance with its value, in declaration order."""
    values: dict[str, object] = {}
    _collect_values(settings, values)
    return [(row, values[row.name]) for row in describe(type(settings))]


def _collect_values(settings: Any, values: dict[str, object]) -> None:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            _collect_values(value, values)
        else:
            values[field.name] = value


def _fields_of(cls: type[Any]) -> Iterator[tuple[str, type[Any], dataclasses.Field[Any]]]:
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield from _fields_of(kind)
        else:
            yield field.name, kind, field


def _build(cls: type[_T], read: Mapping[str, object]) -> _T:
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    assert dataclasses.is_dataclass(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            arguments[field.name] = _build(kind, read)
        elif field.name in read:
            arguments[field.name] = read[field.name]
    return cls(**arguments)


def _read(name: str, kind: type[Any], field: dataclasses.Field[Any], value: object) -> object:
    read = _parse(name, kind, value)
    minimum, maximum = field.metadata.get("min"), field.metadata.get("max")
    unit = _unit_of(name, field)
    if (minimum is not None and read < minimum) or (maximum is not None and read > maximum):
        low = "" if minimum is None else f"at least {minimum}"
        high = "" if maximum is None else f"at most {maximum}"
        bounds = " and ".join(part for part in (low, high) if part)
        raise SettingError(f"setting {name!r} is {read}{' ' + unit if unit else ''}; it must be {bounds}")
    choices = field.metadata.get("choices", ())
    if choices and read not in choices:
        raise SettingError(f"setting {name!r} is {read!r}; it must be one of {', '.join(choices)}")
    return read


def _parse(name: str, kind: type[Any], value: object) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
        truth = _TRUTHS.get(str(value).strip().lower())
        if truth is None:
            raise SettingError(f"setting {name!r} is {value!r}; it must be true or false")
        return truth
    if kind is str:
        return str(value)
    if kind not in {int, float}:
        raise TypeError(f"setting {name!r} has the type {kind}; settings are int, float, bool or str")
    try:
        return _parse_number(kind, value)
    except (ValueError, TypeError, OverflowError):
        what = "a whole number, with KiB, MiB or GiB after it if it is a size" if kind is int else "a number"
        raise SettingError(f"setting {name!r} is {value!r}; it must be {what}") from None


def _parse_number(kind: type[Any], value: object) -> int | float:
    if isinstance(value, bool):
        raise TypeError(value)
    if kind is float:
        number = float(str(value))
        if number != number or number in {float("inf"), float("-inf")}:  # noqa: PLR0124 - only NaN differs from itself
            raise ValueError(value)
        return number
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(value)
    if isinstance(value, int | float):
        return int(value)
    text = str(value).strip()
    factor = _BYTE_UNITS.get(text[-3:], 1)
    return int(text[:-3] if factor > 1 else text) * factor
