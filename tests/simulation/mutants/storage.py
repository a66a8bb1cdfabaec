"""Planted bugs of journals and stream storage, and their replacements."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from ponor_journal import format as journal_format
from ponor_journal import scan
from ponor_journal import writer as journal_writer
from ponor_journal.entry_queue import EntryQueue, QueuedEntry
from ponor_journal.format import FrameHeader, live_name
from ponor_journal.segment_files import SegmentFiles
from ponor_journal.writer import JournalWriter
from s3stream.group_commit import GroupCommit, OnDurable
from s3stream.object_wal.object_wal import ObjectWal, _Slot
from s3stream.object_wal.slot_deletion import SlotDeletion
from s3stream.object_wal.slot_keys import slot_key
from s3stream.object_wal.walk import WalWalk
from s3stream.open_stream import OpenStream
from s3stream.records import StreamRecord
from s3stream.recovery import RecoveryFilter, Verdict
from s3stream.storage import Storage
from s3stream.takeover import _Takeover
from s3stream.upload import Upload, UploadPipeline

from tests.simulation.mutants.mutant import Catch, Mutant, Suite, method, used_in

_headers_behind = scan._headers_behind
_take_group = EntryQueue.take_group
_start_writer = JournalWriter.start
_add = GroupCommit.add
_submit = UploadPipeline.submit
_judge = RecoveryFilter.judge
_begin_put = ObjectWal._begin_put
_acknowledge = ObjectWal._acknowledge
_delete_below = SlotDeletion.delete_below
_delete_slots = _Takeover._delete
_run_takeover = _Takeover.run


def acknowledge_group(self: EntryQueue, room_bytes: int) -> list[QueuedEntry]:
    """`EntryQueue.take_group`."""
    group = _take_group(self, room_bytes)
    for entry in group:
        entry.on_durable(None)
        entry.on_durable = lambda _: None
    return group


def headers_of_all_generations(
    data: bytes, start: int, _: int, identity: bytes
) -> Iterator[tuple[int, FrameHeader] | None]:
    """`scan._headers_behind`."""
    return _headers_behind(data, start, 0, identity)


async def rename_without_sync(self: SegmentFiles, spare: PurePath, generation: int) -> PurePath:
    """`SegmentFiles.make_live`."""
    path = self.directory / live_name(generation)
    await self._disk.rename(spare, path)
    return path


async def start_without_unproven_tail(self: JournalWriter) -> None:
    """`JournalWriter.start`."""
    assert isinstance(self._unproven_bytes, bytes)
    self._unproven_bytes = b""
    await _start_writer(self)


def acknowledge_append(
    self: GroupCommit, stream: OpenStream, record: StreamRecord, size_bytes: int, on_durable: OnDurable
) -> None:
    """`GroupCommit.add`."""
    _add(self, stream, record, size_bytes, lambda _: None)
    asyncio.get_running_loop().call_soon(on_durable, None)


async def upload_at_once(self: UploadPipeline, upload: Upload) -> None:
    """`UploadPipeline._upload_in_order`."""
    await self._uploader.upload(upload.plan)


def submit_and_trim(self: UploadPipeline, upload: Upload) -> None:
    """`UploadPipeline.submit`."""
    _submit(self, upload)
    self._on_committed.__self__.trim_wal()  # type: ignore[attr-defined]


def sequence_without_carried(self: Storage, upload: Upload | None) -> int:
    """`Storage._sequence_needed_after`."""
    sequences = [
        self._pipeline.first_sequence_without(upload),
        self._cache.active.first_sequence if self._cache.active.runs else None,
    ]
    return min((each for each in sequences if each is not None), default=self._next_sequence)


def drop_tail(self: RecoveryFilter, record: StreamRecord) -> Verdict:
    """`RecoveryFilter.judge`."""
    if record.stream_id not in self._streams:
        return Verdict.NOT_OWNED
    is_committed = record.base_offset < self._end_offsets[record.stream_id]
    return Verdict.COMMITTED if is_committed else Verdict.NOT_OWNED


def judge_as_newest_epoch(self: RecoveryFilter, record: StreamRecord) -> Verdict:
    """`RecoveryFilter.judge`."""
    state = self._streams.get(record.stream_id)
    if state is not None and record.epoch < state.epoch:
        record.epoch = state.epoch
    return _judge(self, record)


def acknowledge_slot(self: ObjectWal, slot: _Slot, now_ns: int) -> None:
    """`ObjectWal._begin_put`."""
    _begin_put(self, slot, now_ns)
    waiters, slot.waiters = slot.waiters, []
    for on_durable in waiters:
        asyncio.get_running_loop().call_soon(on_durable, None)


def acknowledge_and_delete(self: ObjectWal, below: int) -> None:
    """`ObjectWal._acknowledge`."""
    _acknowledge(self, below)
    self._deletion.delete_below(below)


def delete_further(self: SlotDeletion, sequence: int) -> None:
    """`SlotDeletion.delete_below`."""
    _delete_below(self, max(sequence, self._wanted))


async def check_nothing(self: WalWalk, hole: int) -> None:
    """`WalWalk._check_nothing_acknowledged_above`."""


async def delete_with_fence(self: _Takeover, walk: WalWalk) -> None:
    """`_Takeover._delete`."""
    await _delete_slots(self, walk)
    await self._store.delete([slot_key(self._wal.name, walk.end_sequence)])


async def take_over_and_delete(self: _Takeover) -> object:
    """`_Takeover.run`."""
    self._manager.may_delete_recovered = lambda: True  # type: ignore[method-assign]
    return await _run_takeover(self)


JOURNAL_AND_STORAGE_MUTANTS: Final = (
    Mutant(
        "journal_ack_before_sync",
        "An entry is acknowledged when its group is formed, before the sync.",
        (method(EntryQueue.take_group, acknowledge_group),),
        (Catch(Suite.JOURNAL, "is lost", 1),),
    ),
    Mutant(
        "journal_rotation_without_directory_sync",
        "Entries in a new segment are acknowledged before the segment's name is durable.",
        (method(SegmentFiles.make_live, rename_without_sync),),
        (Catch(Suite.JOURNAL, "is lost", 8),),
    ),
    Mutant(
        "journal_generation_not_checked",
        "CRCs are not seeded with the generation, so the old frames of a recycled file look valid.",
        (
            *used_in("frame_seed", lambda identity, generation: 0, scan, journal_writer, journal_format),
            *used_in("_headers_behind", headers_of_all_generations, scan),
        ),
        (Catch(Suite.JOURNAL, "refused without a fault", 0),),
    ),
    Mutant(
        "journal_tail_not_written_again",
        "A restart trusts unproven frames that it can read, although their sync may have failed.",
        (method(JournalWriter.start, start_without_unproven_tail),),
        (Catch(Suite.JOURNAL, "refused without a fault", 117),),
    ),
    Mutant(
        "journal_truncates_corrupt_middle",
        "A log is cut at the first damaged frame, even if intact frames follow.",
        used_in("_judge_tail", lambda *_: iter(()), scan),
        (Catch(Suite.SWARM, r"two histories", 49),),
    ),
    Mutant(
        "storage_ack_before_durable",
        "An append is acknowledged when it is handed to the write-ahead log.",
        (method(GroupCommit.add, acknowledge_append),),
        (Catch(Suite.STORAGE, "lost", 4), Catch(Suite.CLUSTER, "OUT_OF_ORDER_SEQUENCE_NUMBER", 0)),
    ),
    Mutant(
        "storage_trim_forgets_carried",
        "The write-ahead log is trimmed as if records carried to the next upload were uploaded.",
        (method(Storage._sequence_needed_after, sequence_without_carried),),
        (Catch(Suite.STORAGE, "lost", 5),),
    ),
    Mutant(
        "storage_commits_out_of_order",
        "An upload is committed as soon as its objects are stored, before older uploads.",
        (method(UploadPipeline._upload_in_order, upload_at_once),),
        (Catch(Suite.STORAGE, "does not continue", 0),),
    ),
    Mutant(
        "storage_trims_before_commit",
        "The write-ahead log is trimmed to what is being uploaded instead of what is committed.",
        (
            method(UploadPipeline.first_sequence_without, lambda *_: None),
            method(UploadPipeline.submit, submit_and_trim),
        ),
        (Catch(Suite.CLUSTER, "neither in the write-ahead log nor uploaded", 4),),
    ),
    Mutant(
        "storage_recovery_drops_tail",
        "Recovery drops records after the committed end instead of uploading them.",
        (method(RecoveryFilter.judge, drop_tail),),
        (Catch(Suite.STORAGE, "lost", 0),),
    ),
    Mutant(
        "storage_recovery_keeps_older_epochs",
        "Recovery treats a record of an older stream epoch as a record of the newest one.",
        (method(RecoveryFilter.judge, judge_as_newest_epoch),),
        (Catch(Suite.STORAGE, "neither in the write-ahead log nor uploaded", 15),),
    ),
    Mutant(
        "recovery_closes_at_committed_end",
        "Streams of a dead broker are closed at the committed end; its log's remaining records are dropped.",
        (method(RecoveryFilter.judge, lambda self, record: Verdict.COMMITTED),),
        (Catch(Suite.SWARM, r"invariant 32", 2),),
    ),
    Mutant(
        "takeover_deletes_unconfirmed",
        "A recovery deletes slots although a forced controller recovery waits for its confirmation.",
        (method(_Takeover.run, take_over_and_delete),),
    ),
    Mutant(
        "wal_ack_before_durable",
        "An append to a log in the store is acknowledged when its put begins.",
        (method(ObjectWal._begin_put, acknowledge_slot),),
        # A lost record: a consumer asks for an offset behind the end, or its producer has a gap of sequences.
        (Catch(Suite.SWARM, r"invariant 32|OFFSET_OUT_OF_RANGE|OUT_OF_ORDER_SEQUENCE_NUMBER", 8),),
    ),
    Mutant(
        "wal_fence_trimmed",
        "The recoverer of a log in the store deletes the fence with the slots.",
        (method(_Takeover._delete, delete_with_fence),),
        (Catch(Suite.SWARM, r"the fence .* is deleted", 2),),
    ),
    Mutant(
        "wal_gap_skipped",
        "A recovery takes a gap for the end of the log, although a later slot proves acknowledged records.",
        (method(WalWalk._check_nothing_acknowledged_above, check_nothing),),
    ),
    Mutant(
        "wal_trimmed_before_commit",
        "Slots are deleted as soon as their records wait for an upload.",
        (
            method(SlotDeletion.delete_below, delete_further),
            method(ObjectWal._acknowledge, acknowledge_and_delete),
        ),
        (Catch(Suite.SWARM, r"invariant 32", 8),),
    ),
)
