"""Decode with both kernels and compare: equal Arrow batches, and equal errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from ponor_spark.clip import AbortedRange, Clip
from ponor_spark.decode import kernel
from ponor_spark.decode.batches import BatchDecoder
from ponor_spark.decode.errors import CorruptBatchError
from ponor_spark.decode.schema import FULL, HEADERS, TIMESTAMP, schema_of

from spark.tests import kernel_oracle

EVERYTHING: Final = (*FULL.names, HEADERS)
EVERYWHERE: Final = Clip("t", 3, 0, 1 << 60)
KERNELS: Final[tuple[Any, ...]] = (kernel.RowBuilder, kernel_oracle.RowBuilder)


def decode(
    feed: Callable[[BatchDecoder], None],
    *,
    columns: Sequence[str] = EVERYTHING,
    clip: Clip = EVERYWHERE,
    aborted: Sequence[AbortedRange] = (),
    **bounds: Any,
) -> list[pa.RecordBatch]:
    """Return the Arrow batches, validated and equal for both kernels.

    Raises:
        CorruptBatchError: both kernels refused.
    """
    compiled, interpreted = (
        _outcome(BatchDecoder(columns, clip=clip, aborted=aborted, kernel=builder, **bounds), feed)
        for builder in KERNELS
    )
    assert str(compiled) == str(interpreted)
    assert compiled == interpreted or isinstance(compiled, CorruptBatchError)
    if isinstance(compiled, CorruptBatchError):
        raise compiled
    assert isinstance(interpreted, list)
    for batch in (*compiled, *interpreted):
        assert batch.schema.equals(schema_of(columns))
        assert batch.num_rows > 0
        batch.validate(full=True)
    return compiled


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Return rows as dictionaries; timestamps in microseconds."""
    rows = []
    for batch in batches:
        if TIMESTAMP in batch.schema.names:
            at = batch.schema.get_field_index(TIMESTAMP)
            batch = batch.set_column(at, TIMESTAMP, batch.column(at).view(pa.int64()))  # noqa: PLW2901
        rows += batch.to_pylist()
    return rows


def _outcome(
    decoder: BatchDecoder, feed: Callable[[BatchDecoder], None]
) -> list[pa.RecordBatch] | CorruptBatchError:
    feed(decoder)
    try:
        return list(decoder.finish())
    except CorruptBatchError as error:
        return error
