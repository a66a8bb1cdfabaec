"""Records as lines of text: `ponor topic consume` writes the forms that `ponor topic produce` reads.

- Plain: a line is a value. With a key separator, the text before its first occurrence is the key.
- JSON: a line is an object with the optional fields key, value, headers ({name: value} or [[name,
  value], ...]), partition and timestamp (ms). Bytes that are not UTF-8 are {"base64": "..."}. A
  null value deletes a key of a compacted topic.
"""

from __future__ import annotations

import base64
import binascii
import enum
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

from ponor_cli.errors import CommandError

HeaderList: TypeAlias = list[tuple[str, bytes | None]]
INT64_MAX: Final = (1 << 63) - 1
_KNOWN = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class RecordFormat(enum.StrEnum):
    """How `consume` writes a record."""

    VALUE = "value"
    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class TextRecord:
    """A record to write. Without a partition, the key determines it; without a timestamp, the time of
    writing is used.
    """

    key: bytes | None
    value: bytes | None
    headers: HeaderList
    partition: int | None = None
    timestamp_ms: int | None = None


class ReadRecord(Protocol):
    """A record as the consumer returns it; the timestamp is in milliseconds."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


def parse_header(text: str) -> tuple[str, bytes]:
    """Parse NAME=VALUE.

    Raises:
        CommandError: there is no `=`.
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise CommandError(f"--header {text}: write NAME=VALUE")
    if not _is_utf8(name):
        raise CommandError(f"--header {text!a}: the name is not UTF-8")
    return name, os.fsencode(value)


def parse_plain(line: bytes, separator: bytes | None, headers: HeaderList, key: bytes | None) -> TextRecord:
    """Parse a line, given without its line ending. A line without the separator gets `key`."""
    if separator is None or separator not in line:
        return TextRecord(key, line, headers)
    own, _, value = line.partition(separator)
    return TextRecord(own, value, headers)


def parse_json(line: bytes, number: int, headers: HeaderList) -> TextRecord:
    """Parse one JSON object. `number` is the line's number, for errors.

    Raises:
        CommandError: names the line and the problem.
    """
    try:
        content = json.loads(line)
        if not isinstance(content, dict):
            raise TypeError("it is not an object")
        unknown = [name for name in content if name not in _KNOWN]
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}; the fields are {', '.join(_KNOWN)}")
        own = content.get("headers") or []
        pairs = list(own.items()) if isinstance(own, dict) else [(name, value) for name, value in own]
        for name, _ in pairs:
            str(name).encode()  # raises for half of a surrogate pair
        return TextRecord(
            _bytes(content.get("key")),
            _bytes(content.get("value")),
            [*headers, *((str(name), _bytes(value)) for name, value in pairs)],
            _whole(content, "partition"),
            _whole(content, "timestamp"),
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise CommandError(f"line {number} is not a JSON record: {error}") from error


def render(
    record: ReadRecord, topic: str, partition: int, form: RecordFormat, separator: bytes | None
) -> bytes:
    """Format one record as a line, including the line ending."""
    if form is RecordFormat.JSON:
        return _render_json(record, topic, partition)
    if form is RecordFormat.TABLE:
        moment = _moment(record.timestamp)
        key = "-" if record.key is None else record.key.decode(errors="replace")
        value = "-" if record.value is None else record.value.decode(errors="replace")
        return f"{partition:>5} {record.offset:>12} {moment:<29} {key:<20} {value}\n".encode()
    value_bytes = record.value if record.value is not None else b""
    if separator is not None:
        return (record.key or b"") + separator + value_bytes + b"\n"
    return value_bytes + b"\n"


def _moment(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(max(timestamp_ms, 0) / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # after the year 9999
        return f"@{timestamp_ms}"


TABLE_HEAD = f"{'PART':>5} {'OFFSET':>12} {'TIMESTAMP':<29} {'KEY':<20} VALUE\n".encode()


def _render_json(record: ReadRecord, topic: str, partition: int) -> bytes:
    content: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
    }
    if record.headers:
        content["headers"] = [[name, _text(value)] for name, value in record.headers]
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def _text(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, dict) and set(value) == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"base64: {error}") from error
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False).encode()


def _whole(content: dict[str, Any], name: str) -> int | None:
    value = content.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ValueError(f"{name} {value!r} is not an integer, or is negative")
    if value is not None and value > INT64_MAX:
        raise ValueError(f"{name} is larger than {INT64_MAX}")
    return value
