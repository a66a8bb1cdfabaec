"""The schema notation: parsed contents and errors."""

import runpy
from pathlib import Path

import pytest
from ponor_kafka.schema.model import EMPTY, VersionRange, snake_case
from ponor_kafka.schema.reader import SchemaTextError, parse_range, parse_schema

MEMBER = Path(__file__).parents[1]
TEXT = """\
# a comment
api 99 example

request ExampleRequest 1-5 flexible 3+ unstable 5
  name: string? = null  # trailing comment
  size: int32 2+ = 0x7f ignorable
  label: string nullable 4+ tag 0
  parts: []Part 2-3
    id: uuid
    on: bool = true
  other: Shared?

response ExampleResponse 1-5 flexible 3+
  all: []Shared

struct Shared
  ids: []int32
"""


def test_schema_is_parsed() -> None:
    schema = parse_schema(TEXT)
    request, response = schema.messages
    fields = {field.name: field for field in request.body.fields}

    assert (schema.api_key, schema.api_name) == (99, "example")
    assert (request.kind, request.versions, request.flexible) == (
        "request",
        VersionRange(1, 5),
        VersionRange(3, 5),
    )
    assert (request.unstable, response.unstable) == (VersionRange(5, 5), EMPTY)
    assert (fields["name"].default, fields["name"].nullable) == (None, VersionRange(1, 5))
    assert (fields["size"].default, fields["size"].ignorable, fields["size"].versions) == (
        127,
        True,
        VersionRange(2, 5),
    )
    assert (fields["label"].tag, fields["label"].nullable) == (0, VersionRange(4, 5))
    assert [one.name for one in schema.structs["Part"].fields] == ["id", "on"]
    assert schema.structs["Part"].fields[1].default is True
    assert fields["parts"].is_struct
    assert response.body.fields[0].type == "Shared"
    assert [field.name for field in request.body.absent(1)] == ["size", "parts"]
    assert [field.name for field in request.body.tagged(5)] == ["label"]
    assert schema.message("ExampleResponse") is response
    with pytest.raises(KeyError):
        schema.message("Nothing")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("request R 0-1\n  a: int32 sometimes\n", "line 2.*sometimes"),
        ("request R 0-x\n", "not a version range"),
        ("request R 0\n      a: int32\n", "indented"),
        ("request R 0\n  a: Missing\n", "Missing"),
        ("request R 0\n  a: int32\n  a: int8\n", "two fields"),
        ("request R 0 fluid 1+\n", "fluid"),
        ("request R 0\n  s: []S\n    a: int8\nstruct S\n  a: int8\n", "twice"),
        ("speech R 0\n", "speech"),
    ],
)
def test_invalid_line_is_named(text: str, problem: str) -> None:
    with pytest.raises(SchemaTextError, match=problem):
        parse_schema(text)


def test_ranges() -> None:
    assert parse_range("3") == VersionRange(3, 3)
    assert list(parse_range("3-5")) == [3, 4, 5]
    assert 32767 in parse_range("3+")


def test_names_become_snake_case() -> None:
    assert snake_case("FetchMaxBytes") == "fetch_max_bytes"
    assert snake_case("LastKnownElr") == "last_known_elr"
    assert snake_case("V3AndBelow") == "v3_and_below"


def test_generation_is_idempotent(capsys: pytest.CaptureFixture[str]) -> None:
    modules = MEMBER / "src" / "ponor_kafka" / "messages"
    before = {path.name: path.stat().st_mtime_ns for path in modules.glob("*.py")}
    runpy.run_path(str(MEMBER / "generate.py"), run_name="__main__")

    assert {path.name: path.stat().st_mtime_ns for path in modules.glob("*.py")} == before
    assert f"{len(before)} modules" in capsys.readouterr().out
