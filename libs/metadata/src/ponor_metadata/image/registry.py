"""All nouns of the metadata, collected from the files of `ponor_metadata.nouns`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from ponor.metadata.v1.records_pb2 import Record

from ponor_metadata import nouns
from ponor_metadata.tables.schema import Noun, Rule, Schema, Section


def _load_nouns() -> tuple[Noun, ...]:
    names = sorted(module.name for module in iter_modules(nouns.__path__))
    return tuple(import_module(f"{nouns.__name__}.{name}").NOUN for name in names)


def _distinct(values: list[Any], what: str) -> None:
    assert len(set(values)) == len(values), f"two nouns share a {what}: {sorted(values)}"


NOUNS: Final = _load_nouns()
"""All nouns, in the order of their file names."""
SCHEMAS: Final[tuple[Schema[Any, Any], ...]] = tuple(
    sorted((each for noun in NOUNS for each in noun.schemas), key=lambda schema: schema.sections[0].number)
)
"""All tables, in the order of their first section in a snapshot."""
SECTIONS: Final[tuple[Section, ...]] = tuple(section for schema in SCHEMAS for section in schema.sections)
"""All section kinds, in the order of a snapshot."""
RULES: Final[dict[str, Rule]] = {rule.__name__: rule for noun in NOUNS for rule in noun.rules}
"""Apply rules by record kind. A kind is the name of a field in the `kind` oneof of
ponor.metadata.v1.Record."""

_distinct([schema.name for schema in SCHEMAS], "table name")
_distinct([section.number for section in SECTIONS], "section number")
_distinct([rule.__name__ for noun in NOUNS for rule in noun.rules], "record kind")
assert set(RULES) == {field.name for field in Record.DESCRIPTOR.oneofs_by_name["kind"].fields}, (
    "the apply rules do not match the record kinds: each kind needs one rule of its name"
)
