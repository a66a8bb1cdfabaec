"""Read a split into Arrow batches, the work of a task. Independent of Spark, so that jobs and tests can use
it.

Memory: the reader's window (`object_reading.py`) and the decoder's data for one Arrow batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ponor_spark.decode.batches import BatchDecoder
from ponor_spark.object_reading import ObjectReader, ReadRetry
from ponor_spark.object_source import ObjectSource, open_object_source
from ponor_spark.split import Split, TailSplit

if TYPE_CHECKING:
    import pyarrow as pa


def read_split(
    split: Split | TailSplit,
    columns: Sequence[str],
    *,
    source: ObjectSource | None = None,
    retry: ReadRetry | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split with these columns, in the order of the split.

    Args:
        split: from `planning.plan`.
        columns: names of `decode.schema`, at least one.
        source: reads the objects; by default the split's store, with the credentials of this process's
            environment.
        retry: bounds of the retries.

    Raises:
        PonorSparkError: an object is missing or damaged, a batch is corrupt, or a store or broker does not
            answer; never a short result.
    """
    if isinstance(split, TailSplit):
        return _tail_rows(split, columns)
    return _object_rows(split, columns, source or open_object_source(split.object_store), retry)


def _object_rows(
    split: Split, columns: Sequence[str], source: ObjectSource, retry: ReadRetry | None
) -> Iterator[pa.RecordBatch]:
    reader = ObjectReader(source, lease_id=split.lease_id, retry=retry)
    decoder: BatchDecoder | None = None
    for run, blocks in reader.runs(split.runs):
        if decoder is None:
            decoder = BatchDecoder(
                columns, clip=run.clip, aborted=run.aborted, time_range_ms=split.time_range_ms
            )
        else:
            decoder.move_to(run.clip, run.aborted)
        while blocks:
            # Remove the block and keep no reference to it, so that its memory is free for the next run.
            decoder.feed_block(blocks.pop(0), run.kafka_shift)
            yield from decoder.take()
    if decoder is not None:
        yield from decoder.finish()


def _tail_rows(split: TailSplit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    # Imported here, because it loads a Kafka client, which most tasks do not need.
    from ponor_spark.tail import read_tail

    decoder = BatchDecoder(columns, clip=split.clip, time_range_ms=split.time_range_ms)
    for _ in read_tail(split, decoder):
        yield from decoder.take()
    yield from decoder.finish()
