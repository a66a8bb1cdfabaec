"""What a directory of segments means after a start: one chain of frames, or an error that names the damage.

What lives here: how segments link to each other. The rules inside one segment stand in `scan`.
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
    "Nothing was changed. Restore the directory from a copy of the same disk; if there is none, what this journal holds beyond its "
    "owner's last snapshot or upload is lost, and its owner has to be started with an empty directory"
)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a start found.

    Attributes:
        created: there was no journal, and one was made.
        frames: group commits found.
        entries: in them.
        bytes: of entries.
        torn_bytes: cut off at the end; never acknowledged.
        first_sequence: of the oldest entry that is there (`next_sequence` if there is none).
        next_sequence: of the next append.
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
    """A live segment. `end` is the position after its last accepted frame; `seal` is what the next one says of it."""

    path: PurePath
    generation: int
    first_sequence: int
    segment_bytes: int
    end: int
    seal: Seal | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """A verified chain of segments and where it ends.

    `unproven` are the bytes of the newest segment between the newest proof of sync and its end.
    """

    segments: list[Segment]
    generation: int
    chain_crc: int
    unproven: bytes
    report: RecoveryReport


async def recover(disk: Disk, live: list[tuple[int, PurePath]], identity: bytes) -> Recovered:
    """Verify every live segment, newest first, because each says how the one before it ended. Changes nothing.

    Raises:
        JournalCorruptError: damage below the newest proof of sync, or a segment is missing.
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
    """Entries of recovered segments in order. Views keep one whole segment in memory: let go of them.

    Raises:
        JournalCorruptError: the disk returns other bytes than it did when the journal was opened.
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
                segment.path, scan.end, "frames read before are not intact any more", REMEDY
            )
        for frame in scan.frames:
            if frame.header.first_sequence + frame.header.entry_count <= from_sequence:
                continue
            for sequence, entry in entries_of(data, frame):
                if sequence >= from_sequence:
                    yield sequence, entry


async def _scan(data: bytes, generation: int, identity: bytes, seal: Seal | None) -> SegmentScan:
    """`scan_segment`, with a turn of the loop for others between its steps."""
    scan = SegmentScan()
    for _ in scan_in_steps(scan, data, generation, identity, seal):
        await _turn()
    return scan


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """Let everything else that is ready run first; no time passes."""
    yield


async def read_segment(disk: Disk, path: PurePath) -> bytes:
    """A whole segment file."""
    file = await disk.open(path)
    try:
        return await file.read(0, await file.size())
    finally:
        await file.close()


def _check(scan: SegmentScan, path: PurePath, identity: bytes) -> int:
    """The generation of the segment before this one (0: none)."""
    if scan.opening is not None:
        if scan.opening.version != FORMAT_VERSION:
            raise JournalIdentityError(
                f"{path} has journal format {scan.opening.version}; this program reads {FORMAT_VERSION}: use the release that wrote it"
            )
        if scan.opening.identity != identity:
            raise JournalIdentityError(
                f"{path} belongs to the journal {scan.opening.identity.hex()}, not to {identity.hex()}: "
                "the directory of another node or cluster was given"
            )
    if scan.damage is not None:
        raise JournalCorruptError(path, scan.damage.position, scan.damage.rule, REMEDY)
    assert scan.opening is not None
    return scan.opening.previous_generation


def _missing(after: Segment, generation: int) -> JournalCorruptError:
    return JournalCorruptError(
        after.path, 0, f"the segment of generation {generation} before it is missing", REMEDY
    )
