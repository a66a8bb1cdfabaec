"""Recorded frames, and properties of encoding and scanning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_journal.entry_queue import QueuedEntry
from ponor_journal.format import (
    FORMAT_VERSION,
    FrameKind,
    Opening,
    decode_header,
    decode_opening,
    encode_opening_frame,
    frame_seed,
    live_generation,
    live_name,
    spare_name,
    spare_number,
)
from ponor_journal.group import encode_group
from ponor_journal.scan import SegmentScan, entries_of, scan_in_steps
from ponor_runtime.disk import SECTOR_BYTES

IDENTITY = bytes(range(16))


def opening_frame(segment_bytes: int, generation: int = 7) -> tuple[bytes, int]:
    return encode_opening_frame(
        Opening(IDENTITY, FORMAT_VERSION, segment_bytes, 3),
        generation=generation,
        first_sequence=100,
        synced_through=0,
        previous_crc=0x01020304,
    )


def test_recorded_opening_frame() -> None:
    """A frame of format version 1: if this fails, existing journals are unreadable."""
    frame, crc = opening_frame(4096)
    assert frame.rstrip(b"\0").hex() == (
        "504a463101000000070000000000000064000000000000000000000028000000000000000000000004030201b8e4c337"
        "000000000000000000000000a7bcf8d4000102030405060708090a0b0c0d0e0f0100000000000000001000000000000003"
    )
    assert crc == 0xD4F8BCA7
    header = decode_header(memoryview(frame), 0, IDENTITY)
    assert header is not None
    assert (header.kind, header.generation, header.first_sequence) == (FrameKind.OPENING, 7, 100)
    assert decode_opening(frame[64:104]) == Opening(IDENTITY, 1, 4096, 3)


def test_names() -> None:
    assert live_name(255) == "segment-00000000000000ff"
    assert live_generation(live_name(255)) == 255
    assert spare_number(spare_name(16)) == 16
    for foreign in ("segment-", "segment-xx", "segment-00000000000000fg", "notes.txt", "spare-0"):
        assert live_generation(foreign) is None
        assert spare_number(foreign) is None


def scan_segment(data: bytes, generation: int) -> SegmentScan:
    scan = SegmentScan()
    for _ in scan_in_steps(scan, data, generation, IDENTITY, None):
        pass
    return scan


@given(
    groups=st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=5), max_size=6),
    large=st.booleans(),
)
def test_encoded_groups_are_scanned(groups: list[list[bytes]], large: bool) -> None:
    segment_bytes = 512 * 1024
    data, crc = opening_frame(segment_bytes)
    sequence = 100
    written: list[tuple[int, bytes]] = []
    for group in groups:
        entries = [entry * (300 if large else 1) for entry in group]
        queued = [
            QueuedEntry([entry[:7], memoryview(entry)[7:]], len(entry), lambda _: None) for entry in entries
        ]
        encoded = encode_group(
            queued,
            frame_seed(IDENTITY, 7),
            generation=7,
            first_sequence=sequence,
            synced_through=len(data),
            previous_crc=crc,
        )
        frame = b"".join(encoded.buffers)
        assert len(frame) == encoded.frame_bytes
        assert len(frame) % SECTOR_BYTES == 0
        if len(data) + len(frame) > segment_bytes:
            break
        data, crc = data + frame, encoded.crc
        written += list(enumerate(entries, sequence))
        sequence += len(entries)
    scan = scan_segment(data.ljust(segment_bytes, b"\0"), 7)
    assert scan.damage is None
    assert (scan.end, scan.next_sequence, scan.chain_crc) == (len(data), sequence, crc)
    found = [(number, bytes(entry)) for frame in scan.frames for number, entry in entries_of(data, frame)]
    assert found == written


@given(st.binary(max_size=4096), st.integers(0, 2**64 - 1))
def test_scan_of_arbitrary_bytes_does_not_raise(data: bytes, generation: int) -> None:
    assert scan_segment(data, generation).damage is not None
    frame, _ = opening_frame(512)
    assert scan_segment(frame + data, 7).next_sequence == 100
