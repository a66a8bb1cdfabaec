"""Records as lines of text."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_cli.errors import CommandError
from ponor_cli.records.text import RecordFormat, parse_header, parse_json, parse_plain, render
from ponor_kafka.records import Header, Record

SOME_BYTES = st.one_of(st.none(), st.binary(max_size=40), st.text(max_size=20).map(str.encode))


@given(
    key=SOME_BYTES,
    value=SOME_BYTES,
    headers=st.lists(st.tuples(st.text(max_size=8), SOME_BYTES), max_size=3),
    timestamp=st.integers(0, 1 << 50),
    partition=st.integers(0, 100),
)
def test_json_of_consume_is_the_input_of_produce(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp: int,
    partition: int,
) -> None:
    record = Record(7, timestamp, key, value, tuple(Header(*header) for header in headers))
    line = render(record, "t", partition, RecordFormat.JSON, None)
    assert line.count(b"\n") == 1
    back = parse_json(line, 1, [])
    assert (back.key, back.value, back.headers) == (key, value, headers)
    assert (back.partition, back.timestamp_ms) == (partition, timestamp)


@given(key=st.binary(max_size=20).filter(lambda key: b":" not in key), value=st.binary(max_size=40))
def test_plain_lines_round_trip_with_the_same_separator(key: bytes, value: bytes) -> None:
    line = render(Record(0, 0, key, value), "t", 0, RecordFormat.VALUE, b":")
    back = parse_plain(line.removesuffix(b"\n"), b":", [], None)
    assert (back.key, back.value) == (key, value)


def test_parse_plain_uses_the_default_key_without_a_separator() -> None:
    assert parse_plain(b"no colon", b":", [], None).key is None
    assert parse_plain(b"no colon", b":", [], b"k").key == b"k"
    assert parse_plain(b"a:b:c", b":", [], b"k").value == b"b:c"


def test_parse_json_keeps_json_values_as_text() -> None:
    assert parse_json(b'{"value": {"a": 1}}', 1, []).value == b'{"a": 1}'
    assert parse_json(b'{"value": 5}', 1, []).value == b"5"
    assert parse_json(b'{"key": "k", "value": null}', 1, []).value is None
    assert parse_json(b'{"value": "v", "headers": {"a": "1"}}', 1, [("b", b"2")]).headers == [
        ("b", b"2"),
        ("a", b"1"),
    ]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"{", "line 3"),
        (b"[]", "not an object"),
        (b'{"worth": 1}', "unknown field 'worth'"),
        (b'{"partition": -1}', "partition -1"),
        (b'{"value": {"base64": "!"}}', "base64"),
    ],
)
def test_parse_json_names_the_line_of_an_invalid_record(line: bytes, word: str) -> None:
    with pytest.raises(CommandError, match="line 3") as refused:
        parse_json(line, 3, [])
    assert word in str(refused.value)


def test_parse_header_needs_a_name() -> None:
    assert parse_header("a=b=c") == ("a", b"b=c")
    with pytest.raises(CommandError, match="NAME=VALUE"):
        parse_header("ab")


def test_render_shows_null_as_a_dash_in_tables() -> None:
    row = render(Record(5, 1_700_000_000_000, None, b"v"), "t", 2, RecordFormat.TABLE, None).decode()
    assert row.split() == ["2", "5", "2023-11-14T22:13:20.000+00:00", "-", "v"]
    assert json.loads(render(Record(5, 1, None, b"v"), "t", 2, RecordFormat.JSON, None))["offset"] == 5


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b'{"value": "v", "headers": {"\\ud800": "x"}}', "surrogates not allowed"),
        (b'{"value": "v", "key": "\\ud800"}', "surrogates not allowed"),
        (b'{"value": "v", "timestamp": 9223372036854775808}', "timestamp is larger"),
        (b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        (b'{"value": "\xff"}', "utf-8"),
    ],
)
def test_parse_json_names_the_line_of_what_cannot_be_a_record(line: bytes, word: str) -> None:
    with pytest.raises(CommandError, match=r"line 7 is not a JSON record") as error:
        parse_json(line, 7, [])
    assert word in str(error.value)


def test_parse_header_takes_any_bytes_as_the_value_and_utf8_as_the_name() -> None:
    assert parse_header(os.fsdecode(b"name=\xff")) == ("name", b"\xff")
    with pytest.raises(CommandError, match="not UTF-8"):
        parse_header(os.fsdecode(b"\xff=value"))


def test_a_table_shows_a_timestamp_after_the_year_9999() -> None:
    line = render(Record(0, 9_000_000_000_000_000, None, b"v"), "t", 0, RecordFormat.TABLE, None)
    assert b"@9000000000000000" in line
