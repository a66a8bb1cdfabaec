"""Decoded values as columns: how a Python value is fitted into an Arrow type. Pure.

What lives here: one rule for all three kinds of schema. What a type has no place for (a union of several types, a recursive message, an object without
declared fields) is text in JSON: nothing is left out and nothing is guessed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

DEPTH_MAX: Final = 32
"""Structs in structs; what is deeper is JSON."""
SCALARS: Final = (str, bytes, date, time, Decimal, UUID)
"""What is text without JSON's quotes; bytes are base64."""
UTC_MICROS: Final = pa.timestamp("us", "UTC")


def fit(value: Any, shape: pa.DataType) -> Any:
    """The value as `pa.array(…, shape)` takes it. Fields that the shape does not have are left out, those that the value does not have are null.

    Raises:
        ValueError: the value is of another kind; names what was found and what was expected.
    """
    if value is None:
        return None
    if pa.types.is_struct(shape):
        _check(value, Mapping, shape)
        return {field.name: fit(value.get(field.name), field.type) for field in shape}
    if pa.types.is_map(shape):
        _check(value, Mapping, shape)
        return [(str(key), fit(each, shape.item_type)) for key, each in value.items()]
    if pa.types.is_list(shape):
        _check(value, Sequence, shape)
        return [fit(each, shape.value_type) for each in value]
    if pa.types.is_string(shape):
        return (
            _as_json(value)
            if isinstance(value, SCALARS)
            else json.dumps(value, default=_as_json, separators=(",", ":"))
        )
    if pa.types.is_floating(shape) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if pa.types.is_integer(shape) and (isinstance(value, bool) or not isinstance(value, int)):
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise _other(value, shape)
    return value


def column(values: Sequence[Any], errors: list[str | None], shape: pa.DataType) -> pa.Array:
    """A column of fitted values. What the type refuses (a number that is too large) becomes null, and its place in `errors` says why."""
    try:
        return pa.array(values, type=shape)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    kept: list[Any] = []
    for number, value in enumerate(values):
        try:
            pa.array([value], type=shape)
            kept.append(value)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            kept.append(None)
            errors[number] = f"the value does not fit its column: {error}"
    return pa.array(kept, type=shape)


def _check(value: Any, kind: type, shape: pa.DataType) -> None:
    if not isinstance(value, kind) or isinstance(value, str | bytes):
        raise _other(value, shape)


def _other(value: Any, shape: pa.DataType) -> ValueError:
    return ValueError(f"a {type(value).__name__} where the reader's schema has {str(shape)[:60]}")


def _as_json(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | time) else str(value)
