"""Replacements for the mutants of journals, streams and write-ahead logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import PurePath

from ponor_journal import scan
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
