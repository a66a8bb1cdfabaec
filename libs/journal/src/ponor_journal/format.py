"""Encoding and decoding of frame headers, bodies, CRC seeds and file names (docs/formats/journal.md).

Pure functions. `scan` interprets sequences of frames and damage.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from crc32c import crc32c
from ponor_runtime.disk import SECTOR_BYTES, Buffer

FORMAT_VERSION: Final = 1
MAGIC: Final = b"PJF1"
IDENTITY_BYTES: Final = 16

_HEADER: Final = struct.Struct("<4sB3xQQIIQII12xI")
"""magic, kind, generation, first_sequence, entry_count, body_bytes, synced_through, previous_crc, body_crc,
header_crc.
"""
FRAME_HEADER_BYTES: Final = _HEADER.size
assert FRAME_HEADER_BYTES == 64
_CRC: Final = struct.Struct("<I")
_CRC_POSITION: Final = FRAME_HEADER_BYTES - _CRC.size
_OPENING: Final = struct.Struct("<16sIIQQ")
"""identity, format version, zero, segment_bytes, previous segment's generation."""
LENGTH_BYTES: Final = 4
OPENING_FRAME_BYTES: Final = SECTOR_BYTES
PROOF_FRAME_BYTES: Final = SECTOR_BYTES

_LIVE_PREFIX: Final = "segment-"
_SPARE_PREFIX: Final = "spare-"
FILLING_PREFIX: Final = "filling-"
_NUMBER_DIGITS: Final = 16


class FrameKind(IntEnum):
    """Content of a frame."""

    OPENING = 1
    DATA = 2
    PROOF = 3


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A decoded and verified header; the next frame repeats `crc` as its `previous_crc`."""

    kind: FrameKind
    generation: int
    first_sequence: int
    entry_count: int
    body_bytes: int
    synced_through: int
    previous_crc: int
    body_crc: int
    crc: int

    @property
    def frame_bytes(self) -> int:
        """Length on disk, including padding."""
        return aligned(FRAME_HEADER_BYTES + self.body_bytes)


@dataclass(frozen=True, slots=True)
class Opening:
    """The body of an opening frame."""

    identity: bytes
    version: int
    segment_bytes: int
    previous_generation: int


def aligned(size_bytes: int) -> int:
    """Round up to whole sectors."""
    return -(-size_bytes // SECTOR_BYTES) * SECTOR_BYTES


def opening_seed(generation: int) -> int:
    """CRC seed of opening frames. It excludes the identity, so that recovery can tell another owner's journal
    from damage.
    """
    return crc32c(generation.to_bytes(8, "little"))


def frame_seed(identity: bytes, generation: int) -> int:
    """CRC seed of other frames. The generation makes old frames of a recycled file invalid. Clients do not
    know the identity, so a client cannot send record data that recovery would take for a valid frame.
    """
    return crc32c(generation.to_bytes(8, "little"), crc32c(identity))


def encode_header(
    kind: FrameKind,
    seed: int,
    *,
    generation: int,
    first_sequence: int,
    entry_count: int,
    body_bytes: int,
    synced_through: int,
    previous_crc: int,
    body_crc: int,
) -> tuple[bytes, int]:
    """Encode a frame header; return it with its CRC."""
    header = _HEADER.pack(
        MAGIC,
        kind,
        generation,
        first_sequence,
        entry_count,
        body_bytes,
        synced_through,
        previous_crc,
        body_crc,
        0,
    )[:_CRC_POSITION]
    crc = crc32c(header, seed)
    return header + _CRC.pack(crc), crc


def decode_header(buffer: memoryview, position: int, identity: bytes) -> FrameHeader | None:
    """Decode the header at a position; None if it is not intact."""
    if len(buffer) - position < FRAME_HEADER_BYTES or bytes(buffer[position : position + 4]) != MAGIC:
        return None
    _, kind, generation, first, count, body_bytes, synced, previous, body_crc, crc = _HEADER.unpack_from(
        buffer, position
    )
    if kind not in _KINDS:
        return None
    seed = opening_seed(generation) if kind == FrameKind.OPENING else frame_seed(identity, generation)
    if crc32c(buffer[position : position + _CRC_POSITION], seed) != crc:
        return None
    return FrameHeader(FrameKind(kind), generation, first, count, body_bytes, synced, previous, body_crc, crc)


_KINDS: Final = frozenset(int(kind) for kind in FrameKind)


def encode_opening_frame(
    opening: Opening, *, generation: int, first_sequence: int, synced_through: int, previous_crc: int
) -> tuple[bytes, int]:
    """Encode a whole opening frame (one sector); return it with its CRC."""
    body = _OPENING.pack(
        opening.identity, opening.version, 0, opening.segment_bytes, opening.previous_generation
    )
    seed = opening_seed(generation)
    header, crc = encode_header(
        FrameKind.OPENING,
        seed,
        generation=generation,
        first_sequence=first_sequence,
        entry_count=0,
        body_bytes=len(body),
        synced_through=synced_through,
        previous_crc=previous_crc,
        body_crc=crc32c(body, seed),
    )
    return (header + body).ljust(OPENING_FRAME_BYTES, b"\0"), crc


def decode_opening(body: Buffer) -> Opening | None:
    """Decode the body of an opening frame after its CRC was checked; None if its size is wrong."""
    if len(body) != _OPENING.size:
        return None
    identity, version, _, segment_bytes, previous_generation = _OPENING.unpack(body)
    return Opening(identity, version, segment_bytes, previous_generation)


def live_name(generation: int) -> str:
    """File name of a segment in use."""
    return f"{_LIVE_PREFIX}{generation:0{_NUMBER_DIGITS}x}"


def spare_name(number: int) -> str:
    """File name of a spare: a zero-filled or recycled file that is ready for use."""
    return f"{_SPARE_PREFIX}{number:0{_NUMBER_DIGITS}x}"


def live_generation(name: str) -> int | None:
    """Generation in a live segment's name; None for other names."""
    return _number(name, _LIVE_PREFIX)


def spare_number(name: str) -> int | None:
    """Number in a spare's name; None for other names."""
    return _number(name, _SPARE_PREFIX)


def _number(name: str, prefix: str) -> int | None:
    digits = name.removeprefix(prefix)
    if digits == name or len(digits) != _NUMBER_DIGITS:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


def entry_cost_bytes(size_bytes: int) -> int:
    """Bytes that an entry needs in a frame."""
    return size_bytes + LENGTH_BYTES
