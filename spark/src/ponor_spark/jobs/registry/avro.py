"""Avro values: fastavro resolves schemas, and this module maps them to columns.

A union of null and one type is that type; any other union, and recursive types, are JSON text (shapes.py).
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from ponor_spark.jobs.registry.client import Registry, Schema
from ponor_spark.jobs.registry.shapes import UTC_MICROS

REFERENCES_MAX: Final = 200
_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "timestamp-millis": UTC_MICROS,
    "timestamp-micros": UTC_MICROS,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "date": pa.date32(),
    "uuid": pa.string(),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
}
"""Spark has no time-of-day type, so times become text."""


class AvroDecoder:
    """Decodes values of any writer's schema into the reader's schema."""

    def __init__(self, registry: Registry, reader: Schema) -> None:
        self._registry = registry
        self._reader = parsed(registry, reader)
        self._writers: dict[int, Any] = {}
        self.shape = shape_of(parsed(registry, reader, expand=True))

    def decode(self, schema_id: int, body: bytes) -> Any:
        """Return the value as a Python object.

        Raises:
            SchemaUnknownError: the registry does not have the writer's schema.
            Exception: any other error means that the body is invalid or the schemas are incompatible.
        """
        from fastavro import schemaless_reader

        writer = self._writers.get(schema_id)
        if writer is None:
            writer = self._writers[schema_id] = parsed(self._registry, self._registry.schema(schema_id))
        stream = io.BytesIO(body)
        value = schemaless_reader(stream, writer, self._reader)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes after the value")
        return value


def parsed(registry: Registry, schema: Schema, *, expand: bool = False) -> Any:
    """A parsed schema with all its references; the expanded form is for inspection, not for decoding."""
    from fastavro.schema import parse_schema

    names: dict[str, Any] = {}
    _load_references(registry, schema, names, [0])
    return parse_schema(json.loads(schema.text), named_schemas=names, expand=expand)


def _load_references(registry: Registry, schema: Schema, names: dict[str, Any], count: list[int]) -> None:
    from fastavro.schema import parse_schema

    for reference in schema.references:
        count[0] += 1
        if count[0] > REFERENCES_MAX:
            raise ValueError(f"a schema with more than {REFERENCES_MAX} references")
        if reference.name in names:
            continue
        referred = registry.version(reference.subject, reference.version)
        _load_references(registry, referred, names, count)
        parse_schema(json.loads(referred.text), named_schemas=names)


def shape_of(schema: Any, inside: tuple[str, ...] = ()) -> pa.DataType:
    """Return the column's type. `inside`: names of the enclosing records."""
    if isinstance(schema, list):
        some = [branch for branch in schema if branch != "null"]
        return shape_of(some[0], inside) if len(some) == 1 else pa.string()
    if isinstance(schema, str):
        # A name that remains after expansion is that of an enclosing record.
        return _PLAIN.get(schema, pa.string())
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        return (
            pa.decimal128(schema["precision"], schema.get("scale", 0))
            if schema["precision"] <= 38
            else pa.string()
        )
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "array":
        return pa.list_(pa.field("element", shape_of(schema["items"], inside)))
    if kind == "map":
        return pa.map_(pa.string(), shape_of(schema["values"], inside))
    if kind in {"record", "error"}:
        name = schema["name"]
        if name in inside or not schema["fields"]:
            return pa.string()
        return pa.struct(
            [pa.field(field["name"], shape_of(field["type"], (*inside, name))) for field in schema["fields"]]
        )
    return shape_of(kind, inside) if isinstance(kind, dict | list) else _PLAIN.get(kind, pa.string())
