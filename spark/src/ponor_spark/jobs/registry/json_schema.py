"""JSON values with a JSON schema: declared properties become columns, the rest is JSON text.

Values are validated against their writer's schema, so that the error column matches the producer's
serializer. References to other schemas of the registry are not resolved in the validation; a schema with such
references is used only for its columns.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from ponor_spark.jobs.registry.client import Registry, Schema
from ponor_spark.jobs.registry.shapes import DEPTH_MAX

_PLAIN: Final = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


class JsonDecoder:
    """Decodes values of any writer's schema into the columns of the reader's."""

    def __init__(self, registry: Registry, reader: Schema) -> None:
        self._registry = registry
        self._validators: dict[int, Any] = {}
        self.shape = shape_of(json.loads(reader.text))

    def decode(self, schema_id: int, body: bytes) -> Any:
        """Return the value as a Python object.

        Raises:
            SchemaUnknownError: the registry does not have the writer's schema.
            ValueError: invalid JSON, or not allowed by its schema.
        """
        value = json.loads(body)
        if schema_id not in self._validators:
            self._validators[schema_id] = self._validator(schema_id)
        validator = self._validators[schema_id]
        error = None if validator is None else next(iter(validator.iter_errors(value)), None)
        if error is not None:
            raise ValueError(f"{error.json_path}: {error.message[:200]}")
        return value

    def _validator(self, schema_id: int) -> Any:
        from jsonschema.validators import validator_for

        schema = self._registry.schema(schema_id)
        if schema.references:
            return None
        content = json.loads(schema.text)
        return validator_for(content)(content)


def shape_of(schema: Any, depth: int = 0) -> pa.DataType:
    """Return the column's type; JSON text if the schema leaves it open."""
    if not isinstance(schema, dict) or depth > DEPTH_MAX:
        return pa.string()
    for key in ("oneOf", "anyOf"):
        if key in schema:
            some = [branch for branch in schema[key] if branch != {"type": "null"}]
            return shape_of(some[0], depth) if len(some) == 1 else pa.string()
    kind = schema.get("type")
    if isinstance(kind, list):
        some = [each for each in kind if each != "null"]
        return shape_of({**schema, "type": some[0]}, depth) if len(some) == 1 else pa.string()
    if kind == "object" and schema.get("properties"):
        return pa.struct(
            [pa.field(name, shape_of(each, depth + 1)) for name, each in schema["properties"].items()]
        )
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return pa.map_(pa.string(), shape_of(schema["additionalProperties"], depth + 1))
    if kind == "array" and isinstance(schema.get("items"), dict):
        return pa.list_(pa.field("element", shape_of(schema["items"], depth + 1)))
    return _PLAIN.get(kind, pa.string()) if isinstance(kind, str) else pa.string()
