"""Recovery of a directory of segments: one verified chain of frames, or an error that names the damage.

This module links segments; `scan` verifies the inside of one.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ponor_runtime.disk import Disk

from ponor_journal.errors import JournalCorruptError, JournalIdentityError
from ponor_journal.format import FORMAT_VERSION
from ponor_journal.scan import Seal, SegmentScan, entries_of, scan_in_steps

REMEDY: Final = (
    "Nothing was changed. Restore the directory from a copy of the same disk. Without a copy, everything in"
    " this journal after its owner's last snapshot or upload is lost, and the owner must start with an empty"
    " directory"
)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Result of a recovery.

    Attributes:
        created: whether a new journal was created.
        frames: group commits found.
        entries: entries in these frames.
        bytes: bytes of these entries.
        torn_bytes: bytes of the truncated tail, which was never acknowledged.
        first_sequence: sequence of the oldest retained entry (`next_sequence` if there is none).
        next_sequence: sequence of the next append.
    """

    created: bool
    frames: int
    entries: int
    bytes: int
    torn_bytes: int
    first_sequence: int
    next_sequence: int


@dataclass(slots=True)
class Segment:
    """A live segment.

    `end` is the position after its last accepted frame; `seal` is the record of that end in the next segment.
    """

    path: PurePath
    generation: int
    first_sequence: int
    segment_bytes: int
    end: int
    seal: Seal | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """A verified chain of segments and its end.

    `unproven` holds the bytes of the newest segment between the newest proof of sync and the end of its last
    accepted frame.
    """

    segments: list[Segment]
    generation: int
    chain_crc: int
    unproven: bytes
    report: RecoveryReport


async def recover(disk: Disk, live: list[tuple[int, PurePath]], identity: bytes) -> Recovered:
    """Verify every live segment, newest first, because each segment records how the previous one ended.

    Changes nothing.

    Raises:
        JournalCorruptError: damage before the newest proof of sync, or a segment is missing.
        JournalIdentityError: the journal belongs to another owner or has another format.
    """
    segments: list[Segment] = []
    frames = entries = size_bytes = 0
    newest: SegmentScan | None = None
    unproven = b""
    seal: Seal | None = None
    expected_generation: int | None = None
    for generation, path in reversed(live):
        if expected_generation is not None and expected_generation != generation:
            raise _missing(segments[-1], expected_generation)
        data = await read_segment(disk, path)
        scan = await _scan(data, generation, identity, seal)
        opening = _check(scan, path, identity)
        if newest is None:
            newest = scan
            unproven = data[scan.proven : scan.end]
        segments.append(Segment(path, generation, scan.first_sequence, len(data), scan.end, seal))
        seal = Seal(scan.opening_previous_crc, scan.first_sequence)
        expected_generation = opening
        frames += len(scan.frames)
        entries += scan.next_sequence - scan.first_sequence
        size_bytes += sum(frame.header.body_bytes - 4 * frame.header.entry_count for frame in scan.frames)
    segments.reverse()
    report = RecoveryReport(
        created=newest is None,
        frames=frames,
        entries=entries,
        bytes=size_bytes,
        torn_bytes=newest.torn_bytes if newest else 0,
        first_sequence=segments[0].first_sequence if segments else 0,
        next_sequence=newest.next_sequence if newest else 0,
    )
    generation, chain_crc = (newest.generation, newest.chain_crc) if newest else (0, 0)
    return Recovered(segments, generation, chain_crc, unproven, report)


async def read_entries(
    disk: Disk, segments: list[Segment], identity: bytes, from_sequence: int
) -> AsyncIterator[tuple[int, memoryview]]:
    """Yield the entries of recovered segments in order. A view keeps its whole segment in memory.

    Raises:
        JournalCorruptError: the disk returned different data than when the journal was opened.
    """
    following = [*(segment.first_sequence for segment in segments[1:]), None][: len(segments)]
    for segment, next_first in zip(segments, following, strict=True):
        if next_first is not None and next_first <= from_sequence:
            continue
        data = await read_segment(disk, segment.path)
        scan = await _scan(data, segment.generation, identity, segment.seal)
        _check(scan, segment.path, identity)
        if scan.end < segment.end:
            raise JournalCorruptError(
                segment.path,
                scan.end,
                "frames that were intact when the journal was opened are damaged now",
                REMEDY,
            )
        for frame in scan.frames:
            if frame.header.first_sequence + frame.header.entry_count <= from_sequence:
                continue
            for sequence, entry in entries_of(data, frame):
                if sequence >= from_sequence:
                    yield sequence, entry


async def _scan(data: bytes, generation: int, identity: bytes, seal: Seal | None) -> SegmentScan:
    """Verify a segment, yielding to the loop between its steps."""
    scan = SegmentScan()
    for _ in scan_in_steps(scan, data, generation, identity, seal):
        await _turn()
    return scan


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """Yield to the event loop once."""
    yield


async def read_segment(disk: Disk, path: PurePath) -> bytes:
    """Read a whole segment file."""
    file = await disk.open(path)
    try:
        return await file.read(0, await file.size())
    finally:
        await file.close()


def _check(scan: SegmentScan, path: PurePath, identity: bytes) -> int:
    """Check a scan; return the generation of the previous segment (0: none)."""
    if scan.opening is not None:
        if scan.opening.version != FORMAT_VERSION:
            raise JournalIdentityError(
                f"{path} has journal format {scan.opening.version}; this release reads format"
                f" {FORMAT_VERSION}; use the release that wrote the file"
            )
        if scan.opening.identity != identity:
            raise JournalIdentityError(
                f"{path} belongs to the journal {scan.opening.identity.hex()}, not to {identity.hex()}: "
                "this is the directory of another node or cluster"
            )
    if scan.damage is not None:
        raise JournalCorruptError(path, scan.damage.position, scan.damage.rule, REMEDY)
    assert scan.opening is not None
    return scan.opening.previous_generation


def _missing(after: Segment, generation: int) -> JournalCorruptError:
    return JournalCorruptError(
        after.path, 0, f"the preceding segment of generation {generation} is missing", REMEDY
    )
