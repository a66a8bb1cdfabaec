"""A flipped bit anywhere in a synced log is detected or harmless (docs/formats/journal.md §6)."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ponor_journal import scan
from ponor_journal.errors import JournalCorruptError, JournalIdentityError
from ponor_journal.format import FRAME_HEADER_BYTES, FrameKind, decode_header
from ponor_runtime.disk import SECTOR_BYTES
from ponor_simulation.disk import SimDisk
from ponor_simulation.simulation import Simulation

from libs.journal.tests.journal_rig import DIRECTORY, IDENTITY, SETTINGS, append_each, open_journal, read_all

ENTRIES = [
    bytes([65 + number]) * size for number, size in enumerate((30, 900, 1, 444, 700, 5000, 100, 8, 600))
]


async def written(disk: SimDisk, *, closed: bool) -> list[PurePath]:
    """Write two segments of entries in two generations, with or without the proof of a clean close.

    Return the live files, oldest first.
    """
    journal = await open_journal(disk)
    await append_each(journal, ENTRIES[:2])
    disk.crash(power_loss=False)
    journal = await open_journal(disk)
    await append_each(journal, ENTRIES[2:])
    if closed:
        await journal.close()
    disk.crash(power_loss=False)
    return [DIRECTORY / name for name in await disk.list(DIRECTORY) if name.startswith("segment")]


def regions(data: bytes) -> list[tuple[str, int, int]]:
    """Name and [start, end) of every part of a segment, including the unused rest."""
    found = []
    position = 0
    while (header := decode_header(memoryview(data), position, IDENTITY)) is not None:
        body = position + FRAME_HEADER_BYTES
        kind = header.kind.name
        found += [
            (f"{kind} header", position, position + 52),
            # Twelve reserved bytes, covered by the header's CRC.
            (f"{kind} reserved and crc", position + 52, body),
            (f"{kind} body", body, body + header.body_bytes),
            ("padding", body + header.body_bytes, position + header.frame_bytes),
        ]
        position += header.frame_bytes
    found.append(("unused", position, len(data)))
    return [region for region in found if region[1] < region[2]]


def expected(region: str, *, newest: bool, last_data: bool, closed: bool) -> set[str]:
    """Result that the format specifies for a flip in a region."""
    if region in {"padding", "unused"} or region.startswith("PROOF"):
        return {"harmless"}
    if newest and last_data and not closed:
        return {"cut"}
    return {"refused"}


async def outcome(disk: SimDisk) -> str:
    try:
        journal = await open_journal(disk)
    except (JournalCorruptError, JournalIdentityError):
        return "refused"
    entries = await read_all(journal)
    await journal.close()
    if entries == list(enumerate(ENTRIES)):
        return "harmless"
    if entries == list(enumerate(ENTRIES))[:-1]:
        return "cut"
    return "cut further" if entries == list(enumerate(ENTRIES))[: len(entries)] else "wrong"


@pytest.mark.parametrize("closed", [True, False], ids=["closed cleanly", "crashed after the last sync"])
def test_flip_in_each_region(closed: bool) -> None:
    probe = Simulation(1)

    async def lay_out() -> list[list[tuple[str, int, int]]]:
        disk = probe.disk("disk")
        return [regions(bytes(disk.state.file(path).durable)) for path in await written(disk, closed=closed)]

    layout = probe.run(lay_out())
    assert len(layout) == 2
    seen: set[tuple[str, str]] = set()
    for file, parts in enumerate(layout):
        last_data_start = max(start for name, start, _ in parts if name == "DATA header")
        for name, start, end in parts:
            for position in {start, (start + end) // 2, end - 1}:
                simulation = Simulation(1)

                async def flip(
                    simulation: Simulation = simulation, file: int = file, position: int = position
                ) -> str:
                    disk = simulation.disk("disk")
                    path = (await written(disk, closed=closed))[file]
                    disk.flip_bit(path, position, position % 8)
                    return await outcome(disk)

                got = simulation.run(flip())
                wanted = expected(name, newest=file == 1, last_data=start >= last_data_start, closed=closed)
                assert got in wanted, (
                    f"a flip at byte {position} of file {file} ({name}) is {got}, not {wanted}"
                )
                seen.add((name, got))
    assert {("OPENING header", "refused"), ("DATA body", "refused"), ("padding", "harmless")} <= seen


@given(
    file=st.integers(0, 1), fraction=st.floats(0, 0.9999), bit=st.integers(0, 7), length=st.integers(1, 2000)
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_overwritten_ranges_never_yield_wrong_entries(
    file: int, fraction: float, bit: int, length: int
) -> None:
    simulation = Simulation(1)

    async def run() -> None:
        disk = simulation.disk("disk")
        path = (await written(disk, closed=True))[file]
        parts = regions(bytes(disk.state.file(path).durable))
        proofs = [start for name, start, _ in parts if name == "PROOF header"]
        start = int(fraction * SETTINGS.segment_bytes)
        for position in range(start, start + length):
            disk.flip_bit(path, position, bit)
        got = await outcome(disk)
        # Only damage from a group through the last proof is undetectable (§6, "What cannot be seen").
        witness_is_gone = bool(proofs) and start < proofs[-1] < start + length
        last_data_end = max((end for name, _, end in parts if name == "DATA body"), default=0)
        if (
            not witness_is_gone or start >= last_data_end
        ):  # behind the data there are only padding and the proof itself
            assert got in {"refused", "harmless"}, got
        else:
            assert got in {"refused", "cut", "cut further"}, got

    simulation.run(run())


def test_planted_bug_that_treats_damage_as_a_torn_tail_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_judge_tail", lambda *_: iter(()))
    with pytest.raises(AssertionError, match=r"not \{'refused'\}"):
        test_flip_in_each_region(closed=True)


def test_torn_tail_is_truncated_for_good() -> None:
    simulation = Simulation(1)

    async def run() -> None:
        disk = simulation.disk("disk")
        path = (await written(disk, closed=False))[1]
        data = bytes(disk.state.file(path).durable)
        last = max(start for name, start, _ in regions(data) if name == "DATA header")
        disk.flip_bit(path, last + FRAME_HEADER_BYTES + 5, 1)
        journal = await open_journal(disk)
        assert journal.recovery.torn_bytes == 2 * SECTOR_BYTES
        assert journal.next_sequence == len(ENTRIES) - 1
        disk.crash(power_loss=True)
        # The torn frame becomes intact, as if the disk had recovered the sector; it must stay truncated.
        header = decode_header(memoryview(data), last, IDENTITY)
        assert header is not None
        assert header.kind is FrameKind.DATA
        for position in range(last + SECTOR_BYTES, last + header.frame_bytes):
            disk.state.file(path).seen[position] = data[position]
        journal = await open_journal(disk)
        assert [entry for _, entry in await read_all(journal)] == ENTRIES[:-1]
        await journal.close()

    simulation.run(run())
