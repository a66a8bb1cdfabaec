"""The record log on a real disk: recovery, refused damage, and compaction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ponor_controller.consensus.errors import RecordLogCorruptError
from ponor_controller.consensus.snapshot_files import SnapshotFiles
from ponor_controller.consensus.snapshot_format import SnapshotHeader
from ponor_metadata.image import snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import begin_snapshot
from ponor_raft.entry import Entry, HardState
from ponor_raft.membership import ReplicaId
from ponor_runtime.system import SystemClock
from ponor_runtime.system_disk import SystemDisk

from services.controller.tests.log_writer import MEMBERSHIP, LogWriter, entry_of, open_log, persist


async def test_a_restart_recovers_every_batch_and_the_membership(tmp_path: Path) -> None:
    writer = await LogWriter.open(tmp_path)
    await writer.put(30)
    await writer.log.close()
    again = await LogWriter.open(tmp_path)
    assert (again.image.index, again.image.digest) == (30, writer.image.digest)
    assert again.stored.entries[0].membership == MEMBERSHIP
    assert again.stored.base_of_entries == (0, 0)
    await again.put(5)
    await again.log.close()
    third = await LogWriter.open(tmp_path)
    assert (third.image.index, third.image.digest) == (35, again.image.digest)
    await third.log.close()


async def test_term_and_vote_survive_a_restart_and_the_removal_of_their_segment(
    tmp_path: Path,
) -> None:
    writer = await LogWriter.open(tmp_path)
    assert writer.stored.hard_state == HardState()
    vote = HardState(7, ReplicaId(3_002, b"d" * 16))
    await persist(writer.log, vote)
    await writer.log.close()
    writer = await LogWriter.open(tmp_path)
    assert writer.stored.hard_state == vote
    for _ in range(6):
        for _ in range(200):
            entry = entry_of(writer.image.index + 1, 7)
            writer.log.persist(None, [entry], lambda error: None)
            writer.image.apply_committed(entry.data)
        await writer.snapshot()
    await writer.log.close()
    again = await LogWriter.open(tmp_path)
    assert again.stored.hard_state == vote
    assert again.stored.entries[0].index > 1, "the first segments and their record of the vote are deleted"
    await again.log.close()


async def test_a_later_entry_replaces_all_entries_from_its_index_on(tmp_path: Path) -> None:
    writer = await LogWriter.open(tmp_path)
    old = [entry_of(index, 1, b"old") for index in range(1, 9)]
    await persist(writer.log, HardState(1, None), old)
    new = [entry_of(index, 2, b"new") for index in (4, 5)]
    await persist(writer.log, HardState(2, None), new)
    await writer.log.close()
    log = await open_log(tmp_path)
    stored = await log.recover(MEMBERSHIP)
    assert list(stored.entries) == old[:3] + new
    assert stored.commit == 0, "a log alone proves no commit"
    await persist(log, None, [entry_of(6, 2, b"newer")])
    await log.close()
    log = await open_log(tmp_path)
    assert [entry.index for entry in (await log.recover(MEMBERSHIP)).entries] == [1, 2, 3, 4, 5, 6]
    await log.close()


async def test_snapshot_and_tail_equal_the_whole_log_and_old_segments_are_removed(
    tmp_path: Path,
) -> None:
    writer = await LogWriter.open(tmp_path)
    sizes = []
    for _ in range(6):
        await writer.put(200)
        await writer.snapshot()
        sizes.append(writer.log.retained_bytes)
    await writer.put(7)
    await writer.log.close()
    assert sizes[-1] < 4 * sizes[0], "snapshots free segments of the log"
    assert len(list((tmp_path / "snapshots").iterdir())) == 2

    again = await LogWriter.open(tmp_path)
    assert (again.image.index, again.image.digest) == (1_207, writer.image.digest)
    assert snapshot.encode(again.image) == snapshot.encode(writer.image)
    assert (again.snapshot_index, again.stored.base.membership) == (1_200, MEMBERSHIP)
    tail = again.recovered.tail
    assert (tail.begin_index, tail.last_index) == (1_000, 1_200), (
        "subscribers continue from the older snapshot"
    )
    await again.put(300)
    await again.snapshot()
    await again.log.close()
    third = await LogWriter.open(tmp_path)
    assert (third.image.digest, third.recovered.tail.begin_index) == (again.image.digest, 1_200)
    await third.log.close()


async def test_the_state_digest_covers_the_body_and_is_equal_for_equal_images(tmp_path: Path) -> None:
    one = await LogWriter.open(tmp_path / "one")
    await one.put(120)
    header = await one.snapshot()
    two = MetadataImage()
    for entry in (await _entries(one, tmp_path / "one"))[:120]:
        two.apply_committed(entry.data)
    encoding = begin_snapshot(two)
    body = b"".join(encoding)
    assert (header.state_digest, header.size_bytes) == (encoding.state_digest, len(body))


async def _entries(writer: LogWriter, path: Path) -> list[Entry]:
    await writer.log.close()
    log = await open_log(path)
    try:
        return list((await log.recover(MEMBERSHIP)).entries)
    finally:
        await log.close()


async def test_every_flipped_byte_in_a_snapshot_is_refused_with_its_file(tmp_path: Path) -> None:
    writer = await LogWriter.open(tmp_path)
    await writer.put(100)
    await writer.snapshot()
    await writer.log.close()
    (path,) = (tmp_path / "snapshots").iterdir()
    good = path.read_bytes()
    head = range(160)
    body = range(160, len(good), 97)
    for position in (*head, *body, len(good) - 1):
        data = bytearray(good)
        data[position] ^= 0x10
        path.write_bytes(bytes(data))
        with pytest.raises(RecordLogCorruptError) as refused:
            await open_log(tmp_path)
        assert str(path) in str(refused.value)


async def test_a_truncated_snapshot_is_refused(tmp_path: Path) -> None:
    writer = await LogWriter.open(tmp_path)
    await writer.put(100)
    await writer.snapshot()
    await writer.log.close()
    (path,) = (tmp_path / "snapshots").iterdir()
    for length in (10, 100, 1_000):
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(RecordLogCorruptError):
            await open_log(tmp_path)


async def test_a_flipped_byte_in_any_region_of_the_log_is_refused_without_truncation(tmp_path: Path) -> None:
    """Headers of frames, pieces, batches and proofs, in a sealed segment and in the last one:
    everything below the proof of sync.
    """
    writer = await LogWriter.open(tmp_path)
    await writer.put(300)
    await writer.log.close()
    live = sorted((tmp_path / "log").glob("segment-*"))
    assert len(live) > 2, "there are sealed segments and a last one"
    for path in (live[0], live[-1]):
        good = path.read_bytes()
        end = len(good.rstrip(b"\0"))
        for position in (*range(0, 64, 7), *range(512, 512 + 96, 5), *range(700, end, 997)):
            if good[position : position + 1] == b"\0" and position % 512 > 400:
                continue  # padding between frames is unused
            data = bytearray(good)
            data[position] ^= 1
            path.write_bytes(bytes(data))
            assert await _refuses_or_is_whole(tmp_path, path.name, writer.image.digest), (
                f"byte {position} of {path.name} was accepted"
            )
            path.write_bytes(good)


async def _refuses_or_is_whole(path: Path, segment: str, digest: bytes) -> bool:
    """Some bytes are unused; all others must end the start with the segment's name."""
    try:
        again = await LogWriter.open(path)
    except RecordLogCorruptError as refused:
        return segment in str(refused)
    await again.log.close()
    return again.image.digest == digest


async def test_a_log_that_ends_before_its_own_snapshot_is_refused(tmp_path: Path) -> None:
    writer = await LogWriter.open(tmp_path)
    await writer.put(100)
    await writer.log.close()
    await _add_snapshot(tmp_path, received=False)
    with pytest.raises(RecordLogCorruptError, match="ends at index 100"):
        await LogWriter.open(tmp_path)


async def test_a_received_snapshot_replaces_a_shorter_log(tmp_path: Path) -> None:
    """The process ended after the file was durable and before the log was restarted."""
    writer = await LogWriter.open(tmp_path)
    await writer.put(100)
    await writer.log.close()
    header = await _add_snapshot(tmp_path, received=True)
    for _ in range(2):
        log = await open_log(tmp_path)
        stored = await log.recover(MEMBERSHIP)
        assert stored.base == header.meta
        assert list(stored.entries) == []
        await log.close()
    log = await open_log(tmp_path)
    await log.recover(MEMBERSHIP)
    await persist(log, HardState(3, None), [entry_of(header.index + 1, 3)])
    await log.close()
    log = await open_log(tmp_path)
    stored = await log.recover(MEMBERSHIP)
    assert [entry.index for entry in stored.entries] == [header.index + 1]
    assert stored.base_of_entries == (header.index, header.term)
    await log.close()


async def test_after_a_received_snapshot_no_older_entry_reappears(tmp_path: Path) -> None:
    writer = await LogWriter.open(tmp_path)
    await writer.put(100)
    header = await _add_snapshot(tmp_path, received=True)
    writer.log.begin_after(header)
    await persist(writer.log, HardState(3, None), [entry_of(header.index + 1, 3)])
    await writer.log.close()
    log = await open_log(tmp_path)
    stored = await log.recover(MEMBERSHIP)
    assert [entry.index for entry in stored.entries] == [header.index + 1]
    await log.close()


async def _add_snapshot(path: Path, *, received: bool) -> SnapshotHeader:
    image = MetadataImage()
    for index in range(1, 151):
        image.apply_committed(entry_of(index, 2).data)
    files = SnapshotFiles(SystemDisk(), path / "snapshots")
    await files.open()
    header = SnapshotHeader(150, 2, 0, 150, image.digest, bytes(16), 0, MEMBERSHIP, received=received)
    return await files.write(replace(header), begin_snapshot(image), SystemClock())


async def test_a_gap_and_a_falling_term_are_refused(tmp_path: Path) -> None:
    for name, entries in (("hole", [(1, 1), (3, 1)]), ("term", [(1, 2), (2, 1)])):
        writer = await LogWriter.open(tmp_path / name)
        for index, term in entries:
            await persist(writer.log, HardState(2, None), [entry_of(index, term)])
        await writer.log.close()
        with pytest.raises(RecordLogCorruptError, match=r"missing|after an entry of term"):
            await LogWriter.open(tmp_path / name)


async def test_leftovers_of_a_crash_are_removed_and_unknown_files_are_named(tmp_path: Path) -> None:
    writer = await LogWriter.open(tmp_path)
    await writer.put(10)
    await writer.log.close()
    leftover = tmp_path / "snapshots" / "snapshot-00000000000000000010.tmp"
    leftover.write_bytes(b"half")
    again = await LogWriter.open(tmp_path)
    assert not leftover.exists()
    await again.log.close()
    (tmp_path / "snapshots" / "notes.txt").write_text("mine")
    with pytest.raises(RecordLogCorruptError, match=r"notes\.txt"):
        await open_log(tmp_path)
