"""Derive the files in `schema/` from Kafka's message descriptions. Run it by hand once per protocol release.

    python derive_schema.py kafka-clients-4.4.0.jar schema/

The argument is a kafka-clients jar, or a directory that contains its `common/message/*.json`. Only facts are
copied: names, types, versions, nullability, tags, defaults, flexible and unstable versions, API keys, and
which fields may be dropped silently. Descriptions are not read. Messages between controllers and the record
types of the Raft log are skipped: no client sends them, and Ponor's controllers use another protocol.
"""

import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("src")))

# Also runs from a checkout without an installation.
from ponor_kafka.schema.model import FIXED_WIDTH_FORMATS, VARIABLE_WIDTH_TYPES, VersionRange, snake_case
from ponor_kafka.schema.reader import INDENT, VERSION_LAST_MAX, parse_schema

RECORD_SIDE = {
    "AbortedTxn",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "ControlRecordTypeSchema",
    "DefaultPrincipalData",
    "EndTxnMarker",
}
PRIMITIVES = set(FIXED_WIDTH_FORMATS) | VARIABLE_WIDTH_TYPES

Json = dict[str, Any]


def main(source: Path, target: Path) -> None:
    """Write one schema file per API, header and record body found in `source`."""
    descriptions = {one["name"]: one for one in _load(source) if one["validVersions"] != "none"}
    target.mkdir(parents=True, exist_ok=True)
    written = 0
    for name, description in sorted(descriptions.items()):
        if description["type"] == "request" and "broker" in description["listeners"]:
            api = name.removesuffix("Request")
            text = _api_text(api, description, descriptions[f"{api}Response"])
            path = target / f"{description['apiKey']:03d}-{snake_case(api).replace('_', '-')}.txt"
        elif description["type"] == "header" or name in RECORD_SIDE:
            kind = description["type"]
            text = "\n".join(_message_lines(description, kind, set())) + "\n"
            path = target / f"{kind}-{snake_case(name).replace('_', '-')}.txt"
        else:
            continue
        parse_schema(text)
        path.write_text(text, encoding="utf-8")
        written += 1
    sys.stdout.write(f"{written} files in {target}\n")


def _load(source: Path) -> Iterator[Json]:
    for text in _texts(source):
        yield json.loads("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//")))


def _texts(source: Path) -> Iterator[str]:
    if source.is_dir():
        for path in sorted(source.rglob("*.json")):
            yield path.read_text(encoding="utf-8")
        return
    with zipfile.ZipFile(source) as jar:
        for name in sorted(jar.namelist()):
            if name.startswith("common/message/") and name.endswith(".json"):
                yield jar.read(name).decode("utf-8")


def _api_text(api: str, request: Json, response: Json) -> str:
    clashing = set(_struct_names(request)) & set(_struct_names(response))
    lines = [f"api {request['apiKey']} {snake_case(api)}", ""]
    lines += _message_lines(request, "request", clashing)
    lines += ["", *_message_lines(response, "response", clashing)]
    return "\n".join(lines) + "\n"


def _struct_names(message: Json) -> Iterator[str]:
    pending = [*message["fields"]]
    for common in message.get("commonStructs", ()):
        yield common["name"]
        pending += common["fields"]
    while pending:
        field = pending.pop()
        if "fields" in field:
            yield field["type"].removeprefix("[]")
            pending += field["fields"]


def _message_lines(message: Json, kind: str, clashing: set[str]) -> list[str]:
    writer = _MessageWriter(message, clashing)
    head = f"{kind} {message['name']} {message['validVersions']}"
    if message.get("flexibleVersions", "none") != "none":
        head += f" flexible {_shown(_range(message['flexibleVersions']), writer.versions)}"
    if message.get("latestVersionUnstable"):
        head += f" unstable {writer.versions.last}"
    lines = [head, *writer.field_lines(message["fields"], 1)]
    for common in message.get("commonStructs", ()):
        lines += [
            "",
            f"struct {writer.struct_name(common['name'])}",
            *writer.field_lines(common["fields"], 1),
        ]
    return lines


class _MessageWriter:
    """Writes the fields of one message.

    Structs of the same name in request and response get the message's name as prefix.
    """

    def __init__(self, message: Json, clashing: set[str]) -> None:
        self.message_name = message["name"]
        self.versions = _range(message["validVersions"])
        self.clashing = clashing

    def struct_name(self, name: str) -> str:
        return f"{self.message_name}{name}" if name in self.clashing else name

    def field_lines(self, fields: Iterable[Json], depth: int) -> Iterator[str]:
        for field in fields:
            versions = _overlap(_range(field["versions"]), self.versions)
            if versions is None:
                continue  # exists only in unsupported versions
            yield INDENT * depth + " ".join(self._words(field, versions))
            yield from self.field_lines(field.get("fields", ()), depth + 1)

    def _words(self, field: Json, versions: VersionRange) -> Iterator[str]:
        yield f"{snake_case(field['name'])}:"
        array = "[]" if field["type"].startswith("[]") else ""
        element = field["type"].removeprefix("[]")
        nullable = _overlap(_range(field.get("nullableVersions", "none")), versions)
        mark = "?" if nullable == versions else ""
        yield array + (element if element in PRIMITIVES else self.struct_name(element)) + mark
        if versions != self.versions:
            yield _shown(versions, self.versions)
        if nullable is not None and nullable != versions:
            yield f"nullable {_shown(nullable, self.versions)}"
        default = _default(field)
        if default:
            yield f"= {default}"
        if "tag" in field:
            yield f"tag {field['tag']}"
        if field.get("ignorable"):
            yield "ignorable"
        if field.get("flexibleVersions") == "none":
            yield "never-compact"


def _default(field: Json) -> str:
    if "default" not in field:
        return ""
    text = str(field["default"]).lower() if isinstance(field["default"], bool) else str(field["default"])
    return "" if text in {"0", "false", ""} else text


def _range(text: str) -> VersionRange:
    match = re.fullmatch(r"(\d+)(\+|-(\d+))?", text)
    if match is None:
        return VersionRange(0, -1)
    first = int(match[1])
    if match[2] == "+":
        return VersionRange(first, VERSION_LAST_MAX)
    return VersionRange(first, int(match[3]) if match[3] else first)


def _overlap(versions: VersionRange, bounds: VersionRange) -> VersionRange | None:
    first, last = max(versions.first, bounds.first), min(versions.last, bounds.last)
    return VersionRange(first, last) if first <= last else None


def _shown(versions: VersionRange, bounds: VersionRange) -> str:
    first = max(versions.first, bounds.first)
    if versions.last >= bounds.last:
        return f"{first}+"
    return f"{first}" if first == versions.last else f"{first}-{versions.last}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
