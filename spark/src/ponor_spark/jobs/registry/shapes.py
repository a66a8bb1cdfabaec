"""Convert decoded Python values to Arrow types. No I/O.

All three kinds of schema follow one rule: values without a matching type (a union of several types, a
recursive message, an object without declared fields) become JSON text, so nothing is dropped or guessed.
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
"""Maximum nesting of structs; deeper values are JSON."""
SCALARS: Final = (str, bytes, date, time, Decimal, UUID)
"""Types whose values become text without JSON quotes; bytes become base64."""
UTC_MICROS: Final = pa.timestamp("us", "UTC")


def fit(value: Any, shape: pa.DataType) -> Any:
    """Convert a value for `pa.array(…, shape)`. Fields that the shape does not have are dropped; missing
    fields become null.

    Raises:
        ValueError: the value does not have the type that the shape requires; the message names both.
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
    """Return a column of converted values.

    A value that the type cannot hold (a number that is too large) becomes null, with the reason in `errors`.
    """
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
    return ValueError(
        f"a value of type {type(value).__name__}, but the reader's schema requires {str(shape)[:60]}"
    )


def _as_json(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | time) else str(value)
