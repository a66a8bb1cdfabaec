"""Parse option values: flags, numbers, sizes, durations, JSON of offsets.

Each function raises a one-line error that begins with the option's name. `options` defines the options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from ponor_spark.errors import OptionError

OFFSET_EARLIEST: Final = -2
OFFSET_LATEST: Final = -1
INT64_MAX: Final = (1 << 63) - 1

Offsets = dict[str, dict[int, int]]
"""Offsets by topic and partition, as in the Kafka source's JSON.

In options −2 is the earliest offset and −1 the latest.
"""

_SIZE: Final = re.compile(r"(\d+)\s*(b|k|kb|kib|m|mb|mib|g|gb|gib)?", re.IGNORECASE)
_SIZES: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_DURATIONS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def flag(option: str, value: str) -> bool:
    """Parse `true` or `false`."""
    match value.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise OptionError(f"{option}: {value!r} is neither true nor false; write one of them")


def number(option: str, value: str, minimum: int = 1) -> int:
    """Parse an integer of at least `minimum`."""
    try:
        found = int(value)
    except ValueError:
        raise OptionError(f"{option}: {value!r} is not an integer; give one of at least {minimum}") from None
    if not minimum <= found <= INT64_MAX:
        raise OptionError(f"{option}: {found} is out of range; write a number of at least {minimum}")
    return found


def size_bytes(option: str, value: str, minimum: int, maximum: int) -> int:
    """Parse a size in bytes, with or without a unit (`64m`, `67108864`)."""
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise OptionError(f"{option}: {value!r} is not a size; write bytes, or a number with k, m or g")
    found = int(match[1]) * _SIZES[(match[2] or "b")[0].lower()]
    if not minimum <= found <= maximum:
        raise OptionError(f"{option}: {found} bytes is out of range; write {minimum} to {maximum}")
    return found


def duration_ms(option: str, value: str, minimum_ms: int, maximum_ms: int) -> int:
    """Parse a duration, in milliseconds or with a unit (`15m`, `1h`)."""
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise OptionError(f"{option}: {value!r} is not a duration; write a number with ms, s, m, h or d")
    found = int(match[1]) * _DURATIONS_MS[(match[2] or "ms").lower()]
    if not minimum_ms <= found <= maximum_ms:
        raise OptionError(f"{option}: {found} ms is out of range; write {minimum_ms} to {maximum_ms} ms")
    return found


def one_of(option: str, value: str, allowed: Sequence[str]) -> str:
    """Parse one of the allowed keywords, case-insensitive."""
    found = value.strip().lower()
    if found not in allowed:
        raise OptionError(f"{option}: {value!r} is not a valid value; write one of {', '.join(allowed)}")
    return found


def names(option: str, value: str) -> tuple[str, ...]:
    """Parse comma-separated names, without duplicates."""
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not found:
        raise OptionError(f"{option}: the value is empty; write names with commas between them")
    return found


def addresses(option: str, value: str) -> tuple[str, ...]:
    """Parse HOST:PORT,HOST:PORT..."""
    found = names(option, value)
    for each in found:
        host, separator, port = each.rpartition(":")
        if not (separator and host and port.isdigit() and 0 < int(port) < 1 << 16):
            raise OptionError(
                f"{option}: {each!r} is not an address; write HOST:PORT, several with commas between them"
            )
    return found


def partitions_json(option: str, value: str) -> dict[str, tuple[int, ...]]:
    """Parse `{"topic": [0, 1]}`, the value of `assign`."""
    content = _json_object(option, value, '{"topic": [0, 1]}')
    try:
        return {topic: tuple(sorted(set(map(_partition, wanted)))) for topic, wanted in content.items()}
    except (TypeError, ValueError):
        raise OptionError(
            f'{option}: partitions are numbers, starting at 0; write {{"topic": [0, 1]}}'
        ) from None


def offsets_json(option: str, value: str, minimum: int = OFFSET_EARLIEST) -> Offsets:
    """Parse `{"topic": {"0": 23, "1": -2}}`; the numbers are offsets or timestamps."""
    example = '{"topic": {"0": 23, "1": 42}}'
    content = _json_object(option, value, example)
    try:
        found = {
            topic: {_partition(int(partition)): _whole(offset) for partition, offset in by_partition.items()}
            for topic, by_partition in content.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f"{option}: not partitions and numbers; write {example}") from None
    for topic, by_partition in found.items():
        for partition, offset in by_partition.items():
            if not minimum <= offset <= INT64_MAX:
                raise OptionError(
                    f"{option}: {offset} for {topic}-{partition} is out of range; write {minimum} or more"
                )
    return found


def _json_object(option: str, value: str, example: str) -> dict[str, Any]:
    try:
        content = json.loads(value)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not content:
        raise OptionError(f"{option}: {value[:80]!r} is not a JSON object of topics; write {example}")
    return content


def _partition(value: object) -> int:
    found = _whole(value)
    if found < 0:
        raise ValueError(value)
    return found


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(value)
    return value
