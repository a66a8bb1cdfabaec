"""Parser of the schema notation (docs/formats/kafka-schema.md).

It runs when the message modules are generated and again at the first use of a message's codec. It is strict
because only this project writes the notation.
"""

import re
from dataclasses import dataclass, field

from ponor_kafka.schema.model import (
    EMPTY,
    FIXED_WIDTH_FORMATS,
    VARIABLE_WIDTH_TYPES,
    Default,
    Field,
    Message,
    MessageKind,
    Schema,
    Struct,
    VersionRange,
)

INDENT = "  "
VERSION_LAST_MAX = 32767
_RANGE = re.compile(r"(\d+)(?:(\+)|-(\d+))?\Z")
_KINDS: dict[str, MessageKind] = {
    "request": "request",
    "response": "response",
    "header": "header",
    "data": "data",
}


class SchemaTextError(ValueError):
    """A schema file violates the notation; the message names the line."""


@dataclass(slots=True)
class _Block:
    """The head of a message or struct, or a field with nested fields, while its lines are read."""

    depth: int
    struct_name: str
    fields: list[Field] = field(default_factory=list)


@dataclass(slots=True)
class _Head:
    kind: MessageKind
    name: str
    versions: VersionRange
    flexible: VersionRange
    unstable: VersionRange


class _Reader:
    def __init__(self) -> None:
        self.api_key: int | None = None
        self.api_name: str | None = None
        self.heads: list[_Head] = []
        self.blocks: dict[str, _Block] = {}
        self.open: list[_Block] = []

    def read(self, text: str) -> Schema:
        for number, line in enumerate(text.splitlines(), start=1):
            content = line.split("#", 1)[0].rstrip()
            if not content:
                continue
            depth = (len(content) - len(content.lstrip())) // len(INDENT)
            try:
                self._line(depth, content.strip().split())
            except (SchemaTextError, ValueError, IndexError, KeyError) as error:
                raise SchemaTextError(f"line {number}: {line.strip()!r}: {error}") from error
        structs = {name: Struct(name, tuple(block.fields)) for name, block in self.blocks.items()}
        _check_references(structs)
        messages = tuple(
            Message(head.kind, head.name, head.versions, head.flexible, head.unstable, structs[head.name])
            for head in self.heads
        )
        return Schema(self.api_key, self.api_name, messages, structs)

    def _line(self, depth: int, words: list[str]) -> None:
        if depth == 0:
            self._top_line(words)
            return
        while self.open and self.open[-1].depth >= depth:
            self.open.pop()
        if not self.open or self.open[-1].depth != depth - 1:
            raise SchemaTextError("the line is indented by more than one level below its parent")
        parsed = _parse_field(words, self.heads[-1].versions)
        self.open[-1].fields.append(parsed)
        if parsed.is_struct:
            # A struct's block is created at its first use; later uses refer to it.
            block = self.blocks.get(parsed.type) or _Block(depth, parsed.type)
            if not block.fields:
                block = _Block(depth, parsed.type)
                self.blocks[parsed.type] = block
                self.open.append(block)

    def _top_line(self, words: list[str]) -> None:
        if words[0] == "api":
            self.api_key, self.api_name = int(words[1]), words[2]
            return
        name = words[1]
        if words[0] == "struct":
            existing = self.blocks.get(name)
            if existing is not None and existing.fields:
                raise SchemaTextError(f"struct {name} is defined twice")
        else:
            options = dict(zip(words[3::2], words[4::2], strict=True))
            versions = parse_range(words[2])
            self.heads.append(
                _Head(
                    _KINDS[words[0]],
                    name,
                    versions,
                    _clip(parse_range(options.pop("flexible")), versions) if "flexible" in options else EMPTY,
                    _clip(parse_range(options.pop("unstable")), versions) if "unstable" in options else EMPTY,
                )
            )
            if options:
                raise SchemaTextError(f"unknown words {sorted(options)}")
        self.blocks[name] = _Block(0, name)
        self.open = [self.blocks[name]]


def parse_schema(text: str) -> Schema:
    """Parse one schema file. Raises SchemaTextError, which names the invalid line."""
    return _Reader().read(text)


def parse_range(text: str) -> VersionRange:
    """Parse `3`, `3-9` or `3+`."""
    match = _RANGE.match(text)
    if match is None:
        raise SchemaTextError(f"{text!r} is not a version range")
    first = int(match[1])
    if match[2]:
        return VersionRange(first, VERSION_LAST_MAX)
    return VersionRange(first, int(match[3]) if match[3] else first)


def _clip(versions: VersionRange, bounds: VersionRange) -> VersionRange:
    clipped = VersionRange(max(versions.first, bounds.first), min(versions.last, bounds.last))
    return clipped if clipped.first <= clipped.last else EMPTY


def _parse_field(words: list[str], message_versions: VersionRange) -> Field:
    name, type_word = words[0].removesuffix(":"), words[1]
    rest = words[2:]
    always_nullable = type_word.endswith("?")
    type_name = type_word.removesuffix("?")
    array = type_name.startswith("[]")
    type_name = type_name.removeprefix("[]")
    versions = message_versions
    if rest and _RANGE.match(rest[0]):
        versions = _clip(parse_range(rest.pop(0)), message_versions)
    nullable = versions if always_nullable else EMPTY
    default_word: str | None = None
    tag: int | None = None
    flags: set[str] = set()
    while rest:
        word = rest.pop(0)
        if word == "=":
            default_word = rest.pop(0)
        elif word == "nullable":
            nullable = _clip(parse_range(rest.pop(0)), versions)
        elif word == "tag":
            tag = int(rest.pop(0))
        elif word in {"ignorable", "never-compact"}:
            flags.add(word)
        else:
            raise SchemaTextError(f"unknown word {word!r}")
    default = _parse_default(type_name, default_word, array=array)
    return Field(
        name,
        type_name,
        array,
        versions,
        nullable,
        default,
        tag,
        "ignorable" in flags,
        "never-compact" in flags,
    )


def _parse_default(type_name: str, word: str | None, *, array: bool) -> Default:
    """Return the default as a Python value. None means null, or a default struct if null is impossible."""
    if word == "null":
        return None
    if array or type_name == "bytes":
        return ""
    if type_name == "string":
        return (word or "").strip('"')
    if type_name == "bool":
        return word == "true"
    if type_name == "float64":
        return float(word or 0)
    if type_name == "uuid":
        return ""
    if type_name in FIXED_WIDTH_FORMATS:
        return int(word or "0", 0)
    return None


def _check_references(structs: dict[str, Struct]) -> None:
    for struct in structs.values():
        names = [field.name for field in struct.fields]
        if len(set(names)) != len(names):
            raise SchemaTextError(f"struct {struct.name} has two fields with the same name")
        for one in struct.fields:
            if one.is_struct and not structs[one.type].fields and one.type not in VARIABLE_WIDTH_TYPES:
                raise SchemaTextError(f"{struct.name}.{one.name} refers to {one.type}, which is not defined")
