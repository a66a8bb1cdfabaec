"""Model of a schema file: messages, structs and fields with their versions.

`ponor_kafka.compiler` implements the encoding.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Default = int | float | bool | str | None
MessageKind = Literal["request", "response", "header", "data"]

# Format characters of Python's `struct` for the fixed-width types.
FIXED_WIDTH_FORMATS: Final[Mapping[str, str]] = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
VARIABLE_WIDTH_TYPES: Final = frozenset({"string", "bytes", "records"})


@dataclass(frozen=True, slots=True)
class VersionRange:
    """An inclusive range of versions; `EMPTY` contains none."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))


EMPTY: Final = VersionRange(0, -1)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct.

    `type` is a fixed-width or variable-width type or the name of a struct; `array` makes it an array of
    these. A `tag` makes it a tagged field. `never_compact` is set only for the request header's client id,
    which keeps its two-byte length in flexible versions because brokers must read it before they know the
    version.
    """

    name: str
    type: str
    array: bool
    versions: VersionRange
    nullable: VersionRange
    default: Default
    tag: int | None
    ignorable: bool
    never_compact: bool

    @property
    def is_struct(self) -> bool:
        return self.type not in FIXED_WIDTH_FORMATS and self.type not in VARIABLE_WIDTH_TYPES


@dataclass(frozen=True, slots=True)
class Struct:
    """A named sequence of fields, in wire order."""

    name: str
    fields: tuple[Field, ...]

    def untagged(self, version: int) -> list[Field]:
        """Untagged fields of `version`, in wire order."""
        return [field for field in self.fields if field.tag is None and version in field.versions]

    def tagged(self, version: int) -> list[Field]:
        """Tagged fields of `version`, in tag order."""
        known = [
            (field.tag, field) for field in self.fields if field.tag is not None and version in field.versions
        ]
        return [field for _, field in sorted(known, key=lambda pair: pair[0])]

    def absent(self, version: int) -> list[Field]:
        """Fields that `version` does not have."""
        return [field for field in self.fields if version not in field.versions]


@dataclass(frozen=True, slots=True)
class Message:
    """A request, response, header or record body: its versions and its top-level struct."""

    kind: MessageKind
    name: str
    versions: VersionRange
    flexible: VersionRange
    unstable: VersionRange
    body: Struct


@dataclass(frozen=True, slots=True)
class Schema:
    """Content of one schema file. `structs` includes the messages' bodies."""

    api_key: int | None
    api_name: str | None
    messages: tuple[Message, ...]
    structs: Mapping[str, Struct]

    def message(self, name: str) -> Message:
        """Return the message with this name. Raises KeyError."""
        for message in self.messages:
            if message.name == name:
                return message
        raise KeyError(name)


def snake_case(name: str) -> str:
    """Convert `FetchMaxBytes` to `fetch_max_bytes`, `V3AndBelow` to `v3_and_below`."""
    spaced = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", spaced).lower()
