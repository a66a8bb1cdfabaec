"""Decode a column of framed values into a struct column, with an error column.

Every row keeps its raw value. A null value is decoded to null without an error. A value that cannot be
decoded becomes null, with a message in the error column. If the registry is unreachable, the task fails.

The struct's type must be known before the first row is read. It derives from the reader's schema. By default,
this is the latest version of the subject TOPIC-value when the job starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from ponor_spark.errors import OptionError, PonorSparkError
from ponor_spark.jobs.registry.client import Registry, Schema, SchemaUnknownError, registry_at
from ponor_spark.jobs.registry.shapes import column, fit
from ponor_spark.jobs.registry.wire import framed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ERROR_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Decoding:
    """What to decode.

    The latest version of `subject` is the reader's schema. The columns `into` and `into`_error are added.
    """

    url: str
    subject: str
    column: str = "value"
    into: str = "decoded"

    @property
    def error_column(self) -> str:
        return f"{self.into}_error"


class Decoder(Protocol):
    """Decoder of one kind of schema."""

    shape: pa.DataType

    def decode(self, schema_id: int, body: bytes) -> Any:
        """Return the decoded value; any exception becomes the row's error."""


def decoder_for(registry: Registry, reader: Schema) -> Decoder:
    """Return the decoder for values with this reader's schema.

    Raises:
        OptionError: the kind of the schema is unknown.
    """
    # Each kind's library is imported only if values are of that kind.
    if reader.kind == "AVRO":
        from ponor_spark.jobs.registry.avro import AvroDecoder

        return AvroDecoder(registry, reader)
    if reader.kind == "JSON":
        from ponor_spark.jobs.registry.json_schema import JsonDecoder

        return JsonDecoder(registry, reader)
    if reader.kind == "PROTOBUF":
        from ponor_spark.jobs.registry.protobuf import ProtobufDecoder

        return ProtobufDecoder(registry, reader)
    raise OptionError(
        f"registry: schemas of type {reader.kind} are not supported; use AVRO, JSON or PROTOBUF"
    )


def decoded(frame: DataFrame, decoding: Decoding) -> DataFrame:
    """Return the frame with two more columns: the decoded values and the errors.

    Raises:
        OptionError: the column or the subject does not exist.
        RegistryUnavailableError: the registry cannot be reached; no task was started.
    """
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    if decoding.column not in frame.columns:
        raise OptionError(f"decode: there is no column {decoding.column}; add it to the option `columns`")
    registry = registry_at(decoding.url)
    try:
        reader = registry.version(decoding.subject, "latest")
    except SchemaUnknownError:
        raise OptionError(
            f"subject: the registry has no subject {decoding.subject}; give the subject whose latest schema"
            " describes the values"
        ) from None
    shape = _shape(decoder_for(registry, reader))
    schema = StructType(
        [
            *frame.schema.fields,
            StructField(decoding.into, from_arrow_type(shape)),
            StructField(decoding.error_column, StringType()),
        ]
    )
    return frame.mapInArrow(_adder(decoding, reader), schema)


def _shape(decoder: Decoder) -> pa.DataType:
    return decoder.shape


def _adder(
    decoding: Decoding, reader: Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that executors run. Executors request each writer's schema from the registry,
    once.
    """

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = decoder_for(registry_at(decoding.url), reader)
        for batch in batches:
            yield with_decoded(batch, decoding, decoder)

    return add


def with_decoded(batch: pa.RecordBatch, decoding: Decoding, decoder: Decoder) -> pa.RecordBatch:
    """Return the batch with the two columns and the same number of rows."""
    values: list[Any] = []
    errors: list[str | None] = []
    for value in batch.column(decoding.column).to_pylist():
        found, error = _decode_one(value, decoder)
        values.append(found)
        errors.append(error)
    structs = column(values, errors, decoder.shape)
    fields = [
        *batch.schema,
        pa.field(decoding.into, decoder.shape),
        pa.field(decoding.error_column, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(
        [*batch.columns, structs, pa.array(errors, pa.string())], schema=pa.schema(fields)
    )


def _decode_one(value: bytes | None, decoder: Decoder) -> tuple[Any, str | None]:
    if value is None:
        return None, None
    try:
        schema_id, body = framed(value)
    except ValueError as error:
        return None, str(error)
    try:
        return fit(decoder.decode(schema_id, body), decoder.shape), None
    except PonorSparkError:
        raise
    except Exception as error:  # noqa: BLE001 - each of three libraries has its own exceptions
        return None, f"schema id {schema_id}: {type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
