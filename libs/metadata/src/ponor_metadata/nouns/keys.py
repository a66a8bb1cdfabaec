"""Keys with small values, which brokers store in the metadata."""

from __future__ import annotations

from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records

from ponor_metadata.tables.columns import BLOBS, UNIQUE_TEXTS
from ponor_metadata.tables.schema import FIRST_FIELD, Noun, Schema, Section, View


class KeyRow(NamedTuple):
    """A key and its value."""

    key: str
    value: bytes


KEYS: Final[Schema[str, KeyRow]] = Schema(
    "keys", KeyRow, FIRST_FIELD, (Section(11, (UNIQUE_TEXTS, BLOBS), weighed=(0, 1)),)
)


def key_put(view: View, record: records.KeyPut) -> None:
    """Insert or replace a key."""
    view[KEYS].put(KeyRow(record.key, record.value))


def key_deleted(view: View, record: records.KeyDeleted) -> None:
    """Delete a key, which must exist."""
    assert record.key in view[KEYS], f"key {record.key!r} does not exist"
    view[KEYS].delete(record.key)


NOUN: Final = Noun(schemas=(KEYS,), rules=(key_put, key_deleted))
