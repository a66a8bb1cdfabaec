"""Verification of one segment in memory: its accepted frames, and whether the rest is a torn tail or damage.

Pure rules of docs/formats/journal.md §5. `recovery` links segments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c
from ponor_runtime.disk import SECTOR_BYTES

from ponor_journal.format import (
    FRAME_HEADER_BYTES,
    LENGTH_BYTES,
    MAGIC,
    OPENING_FRAME_BYTES,
    FrameHeader,
    FrameKind,
    Opening,
    decode_header,
    decode_opening,
    frame_seed,
    opening_seed,
)


@dataclass(frozen=True, slots=True)
class Seal:
    """How a segment ended, as recorded in the next one: the CRC of its last frame, and the sequence of the
    entry after it.
    """

    previous_crc: int
    first_sequence: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Data that was proven durable and is not intact."""

    position: int
    rule: str


@dataclass(frozen=True, slots=True)
class PlacedFrame:
    """A data frame and its position."""

    position: int
    header: FrameHeader


@dataclass(slots=True)
class SegmentScan:
    """Result of a scan.

    Attributes:
        opening: body of the frame at position 0; None if that frame is not intact.
        frames: accepted data frames in order.
        end: position after the last accepted frame.
        generation: of the last accepted frame.
        chain_crc: CRC of the last accepted opening or data frame.
        first_sequence: sequence of the first entry that the segment can hold.
        next_sequence: sequence after the last accepted entry.
        opening_previous_crc: CRC of the previous segment's last frame, as stored in this segment's first
            frame.
        proven: everything before this position is known to have been synced.
        torn_bytes: length of the torn frame at `end`, if its header is intact.
        damage: set if the segment must not be opened.
    """

    opening: Opening | None = None
    frames: list[PlacedFrame] = None  # type: ignore[assignment]  # set in __post_init__: slots forbid a shared default
    end: int = 0
    generation: int = 0
    chain_crc: int = 0
    first_sequence: int = 0
    next_sequence: int = 0
    opening_previous_crc: int = 0
    proven: int = 0
    torn_bytes: int = 0
    damage: Damage | None = None

    def __post_init__(self) -> None:
        self.frames = []


STEP_BYTES: Final = 1 << 20
"""Bytes checked by one step of a scan."""


def scan_in_steps(
    scan: SegmentScan, data: bytes, generation: int, identity: bytes, seal: Seal | None
) -> Iterator[None]:
    """Verify a segment and fill in `scan`, in steps of one or two milliseconds.

    Args:
        scan: receives the result; must be newly created.
        data: the whole file.
        generation: from the file's name.
        identity: of the journal.
        seal: how this segment ended, as recorded in the next one; None for the last segment.
    """
    view = memoryview(data)
    if not _accept_first(scan, view, generation, identity):
        return
    pause_at = STEP_BYTES
    while not (seal is not None and _is_sealed(scan, seal)):
        position = _next_frame(scan, view, identity)
        if position is None:
            break
        _accept(scan, view, position, identity)
        if scan.end >= pause_at:
            pause_at = scan.end + STEP_BYTES
            yield
    if seal is not None:
        if not _is_sealed(scan, seal):
            scan.damage = Damage(
                scan.end,
                "the next segment proves that more frames of this segment were synced, but no"
                " intact frame follows",
            )
    elif scan.end < len(data):
        yield from _judge_tail(scan, data, generation, identity)


def entries_of(data: bytes, frame: PlacedFrame) -> Iterator[tuple[int, memoryview]]:
    """Yield sequence and bytes of every entry of an accepted frame; the views keep `data` alive."""
    view = memoryview(data)
    start = frame.position + FRAME_HEADER_BYTES
    count = frame.header.entry_count
    lengths = struct.unpack_from(f"<{count}I", data, start)
    start += count * LENGTH_BYTES
    for sequence, length in enumerate(lengths, frame.header.first_sequence):
        yield sequence, view[start : start + length]
        start += length


def _accept_first(scan: SegmentScan, view: memoryview, generation: int, identity: bytes) -> bool:
    header = decode_header(view, 0, identity)
    if header is None or header.kind is not FrameKind.OPENING or header.generation != generation:
        scan.damage = Damage(0, "the opening frame of the segment is not intact")
        return False
    if not _body_is_intact(view, 0, header, identity):
        scan.damage = Damage(FRAME_HEADER_BYTES, "the body of the segment's opening frame is not intact")
        return False
    scan.opening = decode_opening(view[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + header.body_bytes])
    # A segment gets its name only after its opening frame was synced.
    scan.end = scan.proven = OPENING_FRAME_BYTES
    scan.generation = generation
    scan.chain_crc = header.crc
    scan.opening_previous_crc = header.previous_crc
    scan.first_sequence = scan.next_sequence = header.first_sequence
    if scan.opening is None or scan.opening.identity != identity:
        return False
    if len(view) < scan.opening.segment_bytes:
        scan.damage = Damage(
            len(view), f"the file is shorter than the {scan.opening.segment_bytes} bytes of its segment"
        )
        return False
    return True


def _is_sealed(scan: SegmentScan, seal: Seal) -> bool:
    return scan.chain_crc == seal.previous_crc and scan.next_sequence == seal.first_sequence


def _next_frame(scan: SegmentScan, view: memoryview, identity: bytes) -> int | None:
    """Return the position of the next frame: directly after the last accepted one or one sector later.

    None if there is none.

    If a frame names the last accepted frame by CRC and sequence, at most a proof frame was written between
    them. The loss of a proof frame is harmless.
    """
    for position in (scan.end, scan.end + SECTOR_BYTES):
        header = decode_header(view, position, identity)
        if (
            header is not None
            and _follows(scan, header)
            and _body_is_intact(view, position, header, identity)
        ):
            return position
    return None


def _follows(scan: SegmentScan, header: FrameHeader) -> bool:
    if header.previous_crc != scan.chain_crc or header.first_sequence != scan.next_sequence:
        return False
    if header.kind is FrameKind.OPENING:
        return header.generation > scan.generation
    return header.generation == scan.generation


def _accept(scan: SegmentScan, view: memoryview, position: int, identity: bytes) -> None:
    header = decode_header(view, position, identity)
    assert header is not None
    scan.end = position + header.frame_bytes
    scan.proven = max(scan.proven, header.synced_through)
    if header.kind is FrameKind.PROOF:
        return
    scan.generation = header.generation
    scan.chain_crc = header.crc
    if header.kind is FrameKind.DATA:
        scan.frames.append(PlacedFrame(position, header))
        scan.next_sequence += header.entry_count


def _body_is_intact(view: memoryview, position: int, header: FrameHeader, identity: bytes) -> bool:
    start = position + FRAME_HEADER_BYTES
    body = view[start : start + header.body_bytes]
    if len(body) != header.body_bytes or position + header.frame_bytes > len(view):
        return False
    is_opening = header.kind is FrameKind.OPENING
    seed = opening_seed(header.generation) if is_opening else frame_seed(identity, header.generation)
    if crc32c(body, seed) != header.body_crc:
        return False
    return header.kind is not FrameKind.DATA or _lengths_add_up(body, header.entry_count)


def _lengths_add_up(body: memoryview, count: int) -> bool:
    table_bytes = count * LENGTH_BYTES
    if count == 0 or table_bytes > len(body):
        return False
    lengths: tuple[int, ...] = struct.unpack_from(f"<{count}I", body)
    return table_bytes + sum(lengths) == len(body)


def _judge_tail(scan: SegmentScan, data: bytes, generation: int, identity: bytes) -> Iterator[None]:
    """Decide whether the data after the last accepted frame is a torn tail or damage. It is damage if a later
    frame proves that this data had been synced.
    """
    view = memoryview(data)
    torn = decode_header(view, scan.end, identity)
    if torn is not None and torn.generation >= scan.generation:
        scan.torn_bytes = min(torn.frame_bytes, len(data) - scan.end)
    for found in _headers_behind(data, scan.end, generation, identity):
        if found is None:
            yield
            continue
        position, header = found
        if header.synced_through > scan.end:
            scan.damage = Damage(
                scan.end,
                f"the frame at byte {position} proves that {header.synced_through} bytes of this"
                " segment were synced",
            )
            return


def _headers_behind(
    data: bytes, start: int, generation: int, identity: bytes
) -> Iterator[tuple[int, FrameHeader] | None]:
    """Yield intact headers from `start` on that belong to this segment's generation or a later one.

    Yield None between steps.
    """
    view = memoryview(data)
    while start < len(data):
        end = min(start + STEP_BYTES, len(data))
        search_end = end + len(MAGIC) - 1
        position = data.find(MAGIC, start, search_end)
        while position >= 0:
            if position % SECTOR_BYTES == 0:
                header = decode_header(view, position, identity)
                if header is not None and header.generation >= generation:
                    yield position, header
            position = data.find(MAGIC, position + 1, search_end)
        start = end
        if start < len(data):
            yield None
