"""Assembles the records of one read from blocks of several objects: contiguous, verified, within
the requested size.

`reader` and `read_together` decide which blocks are fetched, and in which order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ponor_runtime.identity import StreamId
from ponor_runtime.turns import Steps

from s3stream.errors import ObjectCorruptError
from s3stream.objects.block import RECORDS_PER_STEP, DataBlock
from s3stream.objects.format import BlockEntry
from s3stream.records import StreamRecord

RECORDS_MAX: Final = 4_096
"""Records of one read. A read of many tiny records would otherwise block the event loop."""


class PlannedPiece(NamedTuple):
    """The blocks of one object that a read uses up to `end_offset`, or the error that made them
    unavailable. The same GET also fetches the `ahead` blocks after them.
    """

    key: str
    known_end_offset: int
    end_offset: int
    entries: Sequence[BlockEntry]
    error: BaseException | None = None
    ahead: Sequence[BlockEntry] = ()


class RecordRun:
    """The contiguous records of one read."""

    def __init__(self, stream_id: StreamId, start_offset: int, end_offset: int, max_bytes: int) -> None:
        self.stream_id: Final = stream_id
        self.end_offset: Final = end_offset
        self.next_offset = start_offset
        self.room_bytes = max_bytes
        self.is_full = False
        self.records: list[StreamRecord] = []

    def piece_steps(
        self, part: PlannedPiece, blocks: Sequence[DataBlock] | BaseException | None
    ) -> Steps[None]:
        """Append the matching records of an object's blocks, or raise the error that made them
        unavailable.
        """
        if isinstance(blocks, BaseException):
            raise blocks
        for block in blocks or ():
            yield from self._block_steps(part.key, block, part.end_offset)
        if not self.is_full and self.next_offset < part.end_offset:
            raise ObjectCorruptError(
                f"{part.key}, position 0: the object has stream {self.stream_id} up to offset"
                f" {self.next_offset}; the metadata says up to {part.known_end_offset}"
            )

    def _block_steps(self, key: str, block: DataBlock, end_offset: int) -> Steps[None]:
        """Append the block's records from `next_offset` to `end_offset`, while there is room."""
        if self.is_full:
            return
        records = block.records_from(self.next_offset)
        while taken := list(islice(records, RECORDS_PER_STEP)):
            if not self._take(key, block, taken, end_offset) or len(taken) < RECORDS_PER_STEP:
                return
            yield

    def _take(self, key: str, block: DataBlock, records: Iterable[StreamRecord], end_offset: int) -> bool:
        """Append records; return False when the room or the requested range is used up."""
        found, room_bytes, next_offset = self.records, self.room_bytes, self.next_offset
        for record in records:
            if record.base_offset >= end_offset:
                return False
            if found and (len(record.payload) > room_bytes or len(found) >= RECORDS_MAX):
                self.is_full = True
                return False
            belongs = record.base_offset == next_offset if found else record.base_offset <= next_offset
            if not belongs or record.end_offset <= next_offset:
                raise ObjectCorruptError(
                    f"{key}, position {block.entry.position}: record [{record.base_offset},"
                    f" {record.end_offset}) of stream {self.stream_id}; expected offset {next_offset}"
                )
            found.append(record)
            self.next_offset = next_offset = record.end_offset
            self.room_bytes = room_bytes = room_bytes - len(record.payload)
        self.is_full = room_bytes <= 0
        return not self.is_full
