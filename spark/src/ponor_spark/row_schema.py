"""Conversion between the columns of a read and Spark's StructType.

Spark has no column pruning for Python sources, so the user chooses the columns. Columns that are not chosen
are not copied, and copying is most of the cost of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ponor_spark.decode.schema import schema_of
from ponor_spark.errors import OptionError

if TYPE_CHECKING:
    from ponor_spark.spark_api import StructType

COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Name and Spark type of each column, in the order of Spark's Kafka connector."""


def ddl_of(columns: Sequence[str]) -> str:
    """Return these columns, in this order, as Spark DDL; parsing it needs a session, which the driver's
    workers lack.
    """
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in columns)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Return the columns that a schema chooses.

    Raises:
        OptionError: an unknown column, or one of another type: batches must have exactly the types that Spark
            derives.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    there_are = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise OptionError(f"schema: there is no column {field.name}; the columns are {there_are}")
        if field.dataType.simpleString() != kind:
            raise OptionError(
                f"schema: column {field.name} is {kind}, not {field.dataType.simpleString()}; the columns are"
                f" {there_are}; cast after the read"
            )
    names = tuple(str(name) for name in schema.fieldNames())
    try:
        ours = schema_of(names)
    except ValueError as error:
        raise OptionError(f"schema: {error}; the columns are {there_are}") from error
    if not to_arrow_schema(schema, timezone="UTC").equals(ours):
        raise OptionError(
            f"schema: every column must be nullable, in structs too; the columns are {there_are}"
        )
    return names
