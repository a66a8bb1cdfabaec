"""Encoding of a group commit: one frame with all entries that one sync makes durable."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c
from ponor_runtime.disk import Buffer

from ponor_journal.entry_queue import QueuedEntry
from ponor_journal.format import FRAME_HEADER_BYTES, FrameKind, aligned, encode_header

JOIN_BYTES_MAX: Final = 64 * 1024
"""Bodies up to this size are copied into one buffer, which is cheaper than writing many small buffers; larger
ones are written from the caller's buffers."""


KEEP_GIL: Final = 0
"""Makes `crc32c` keep the GIL: the checksum of a buffer takes microseconds, and reacquiring the GIL may take
longer."""


class EncodedGroup:
    """The buffers of a data frame, including padding, and its CRC for the next frame."""

    __slots__ = ("buffers", "crc", "frame_bytes")

    def __init__(self, buffers: list[Buffer], frame_bytes: int, crc: int) -> None:
        self.buffers = buffers
        self.frame_bytes = frame_bytes
        self.crc = crc


def encode_group(
    entries: Sequence[QueuedEntry],
    seed: int,
    *,
    generation: int,
    first_sequence: int,
    synced_through: int,
    previous_crc: int,
) -> EncodedGroup:
    """Encode entries as one data frame."""
    table = struct.pack(f"<{len(entries)}I", *[entry.size_bytes for entry in entries])
    body_bytes = len(table) + sum([entry.size_bytes for entry in entries])
    body: list[Buffer] = [table]
    for entry in entries:
        body.extend(entry.buffers)
    if body_bytes <= JOIN_BYTES_MAX:
        body = [b"".join(body)]
    body_crc = seed
    for buffer in body:
        body_crc = crc32c(buffer, body_crc, KEEP_GIL)
    header, crc = encode_header(
        FrameKind.DATA,
        seed,
        generation=generation,
        first_sequence=first_sequence,
        entry_count=len(entries),
        body_bytes=body_bytes,
        synced_through=synced_through,
        previous_crc=previous_crc,
        body_crc=body_crc,
    )
    unpadded = FRAME_HEADER_BYTES + body_bytes
    frame_bytes = aligned(unpadded)
    return EncodedGroup([header, *body, bytes(frame_bytes - unpadded)], frame_bytes, crc)


def group_room_bytes(room_bytes: int) -> int:
    """Room for entries and their lengths in a frame of `room_bytes`."""
    return room_bytes - FRAME_HEADER_BYTES
