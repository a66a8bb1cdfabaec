"""Find the blocks of an object that hold a part of a stream, and the run of an object that is read whole.

Used by the driver, which plans with indexes, and by executors, which read objects before their index is
known. Both compare the index with the metadata, so that an uncovered range is an error and never a short
result. Executors import this module, so it does not import planning.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from ponor_runtime.disk import Buffer
from ponor_runtime.identity import StreamId
from ponor_runtime.object_store import ObjectStoreUnavailableError
from s3stream.errors import ObjectCorruptError
from s3stream.objects.format import BlockEntry
from s3stream.objects.index import ObjectIndex, decode_footer, decode_index
from s3stream.objects.keys import parse_object_key

from ponor_spark.errors import StoredDataError
from ponor_spark.split import ObjectRun, WholeObject


def covering_blocks(
    index: ObjectIndex, stream_id: int, start_offset: int, end_offset: int
) -> Sequence[BlockEntry]:
    """Return the adjacent blocks that hold the stream's offsets [start_offset, end_offset), in order.

    Raises:
        StoredDataError: the object contradicts the metadata.
    """
    blocks = _blocks_of(index, StreamId(stream_id), start_offset, end_offset)
    reached = start_offset
    for block in blocks:
        if block.start_offset > reached:
            break
        reached = block.end_offset
    if reached < end_offset:
        raise StoredDataError(
            f"object {index.key} ends at offset {reached} of stream {stream_id}, the metadata says"
            f" {end_offset}; `ponor object verify` shows details"
        )
    return blocks


def run_of(whole: WholeObject, data: Buffer) -> ObjectRun:
    """Build the run that planning would have built from the object's index, from all of the object's bytes.

    Raises:
        ObjectStoreUnavailableError: bytes are missing, or the index is damaged. A retry may succeed.
        StoredDataError: as `covering_blocks`.
    """
    view = memoryview(data)
    try:
        footer = decode_footer(whole.key, parse_object_key(whole.key)[1], view, whole.size_bytes)
        behind = footer.index_position + footer.index_bytes
        index = decode_index(whole.key, footer, bytes(view[footer.index_position : behind]))
    except ObjectCorruptError as error:
        raise ObjectStoreUnavailableError(str(error)) from error
    start_offset, end_offset = whole.stream_offsets
    blocks = covering_blocks(index, whole.stream_id, start_offset, end_offset)
    begin, last = blocks[0].position, blocks[-1]
    return ObjectRun(
        whole.key,
        whole.bucket_index,
        begin,
        last.position + last.size_bytes - begin,
        b"".join(map(BlockEntry.encode, blocks)),
        whole.kafka_shift,
        whole.clip,
        whole.aborted,
    )


def _blocks_of(
    index: ObjectIndex, stream_id: StreamId, start_offset: int, end_offset: int
) -> Sequence[BlockEntry]:
    """Like `index.blocks_of`, in a third of the time for an object of one stream where nearly all blocks
    match.
    """
    if not index[0].stream_id == stream_id == index[len(index) - 1].stream_id:
        return index.blocks_of(stream_id, start_offset, end_offset)
    blocks = list(index)
    first = bisect_right(blocks, start_offset, key=_end_offset)
    last = bisect_left(blocks, end_offset, lo=first, key=_start_offset)
    return blocks[first:last]


def _start_offset(block: BlockEntry) -> int:
    return block.start_offset


def _end_offset(block: BlockEntry) -> int:
    return block.end_offset
