"""Joins small adjacent blocks, so that the index of an object with many small streams stays small. Pure.

Only the index changes: a block is a sequence of records, and its CRC32C follows from those of its pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from s3stream.objects.crc_joining import joined_crc
from s3stream.objects.format import BlockEntry, spread_of


def joined_blocks(entries: Iterable[BlockEntry], block_bytes_max: int) -> Iterator[BlockEntry]:
    """Blocks in the order in which they will lie in one object, as few as the format allows.

    Blocks are joined that continue each other in one stream under one epoch, up to `block_bytes_max`; a larger one stays as it is. Positions are those in an object that holds
    just these blocks from its beginning on.
    """
    position = 0
    open_block: BlockEntry | None = None
    for entry in entries:
        if open_block is not None:
            if _continues(open_block, entry) and open_block.size_bytes + entry.size_bytes <= block_bytes_max:
                open_block = _joined(open_block, entry)
                continue
            yield open_block
            position += open_block.size_bytes
        open_block = entry._replace(position=position)
    if open_block is not None:
        yield open_block


def _continues(block: BlockEntry, entry: BlockEntry) -> bool:
    return (block.stream_id, block.epoch, block.end_offset) == (
        entry.stream_id,
        entry.epoch,
        entry.start_offset,
    )


def _joined(block: BlockEntry, entry: BlockEntry) -> BlockEntry:
    max_timestamp_ms = max(block.max_timestamp_ms, entry.max_timestamp_ms)
    min_timestamp_ms = min(block.min_timestamp_ms, entry.min_timestamp_ms)
    return block._replace(
        end_offset=entry.end_offset,
        max_timestamp_ms=max_timestamp_ms,
        size_bytes=block.size_bytes + entry.size_bytes,
        record_count=block.record_count + entry.record_count,
        crc=joined_crc(block.crc, entry.crc, entry.size_bytes),
        spread=spread_of(min_timestamp_ms, max_timestamp_ms),
    )
