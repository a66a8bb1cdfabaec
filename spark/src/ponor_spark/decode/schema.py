"""Columns of a row: names and types of Spark's Kafka connector, so that a query can switch sources by the
format name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

KEY: Final = "key"
VALUE: Final = "value"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
TIMESTAMP_TYPE: Final = "timestampType"
HEADERS: Final = "headers"

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(pa.field("element", HEADER_TYPE))
"""Null for a record without headers, as in the connector.

Child names are those that Spark derives, because it compares types as a whole.
"""

FULL: Final = pa.schema(
    [
        pa.field(KEY, pa.binary()),
        pa.field(VALUE, pa.binary()),
        pa.field(TOPIC, pa.string()),
        pa.field(PARTITION, pa.int32()),
        pa.field(OFFSET, pa.int64()),
        pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC")),
        pa.field(TIMESTAMP_TYPE, pa.int32()),
    ]
)
"""The columns without `includeHeaders`."""

_BY_NAME: Final = {field.name: field for field in (*FULL, pa.field(HEADERS, HEADERS_TYPE))}


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return a schema of these columns, in this order; "headers" is a valid name too.

    Raises:
        ValueError: no column is chosen, one is chosen twice, or one is unknown; names it and the valid ones.
    """
    if not columns:
        raise ValueError(f"no column is chosen; the columns are {', '.join(_BY_NAME)}")
    for number, name in enumerate(columns):
        if name not in _BY_NAME:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(_BY_NAME)}")
        if name in columns[:number]:
            raise ValueError(f"the column {name!r} is chosen twice")
    return pa.schema([_BY_NAME[name] for name in columns])
