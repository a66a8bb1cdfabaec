"""Recovery: uploads what an earlier process of this node acknowledged and did not upload, then
closes its streams.

The controller has the committed end of each stream; the log contains everything acknowledged after
it, in order. A record is therefore below its stream's end (already uploaded), exactly at the end
(uploaded now), or above it, which shows that data is missing. Missing data stops the start:
acknowledged data is never dropped silently.

Every step can be repeated: commits move the ends, closed streams are skipped, and the log is trimmed last.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId
from ponor_runtime.runtime import Runtime
from ponor_runtime.turns import turn

from s3stream.errors import StreamNotFoundError, WalCorruptError
from s3stream.object_upload import ObjectUploader
from s3stream.ports import StreamManager, StreamState, WalName
from s3stream.records import StreamRecord
from s3stream.settings import RECORD_OVERHEAD_BYTES, StorageSettings
from s3stream.upload_plan import UploadPiece, plan_upload
from s3stream.wal import WriteAheadLog

STREAMS_PER_CALL_MAX: Final = 500
"""Streams in one operation of the controller."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What the recovery found in the log, and how long it took."""

    records: int
    bytes: int
    streams: int
    skipped_committed: int
    skipped_not_owned: int
    duration_ms: int
    skipped_older_epoch: int = 0
    slots: int = 0


NOTHING_RECOVERED: Final = RecoveryReport(0, 0, 0, 0, 0, 0)


class Verdict(Enum):
    """What to do with one record of the log."""

    UPLOAD = "upload"
    COMMITTED = "committed"
    NOT_OWNED = "not owned"
    OLDER_EPOCH = "older epoch"


class RecoveryFilter:
    """Classifies the records of a log in order. No I/O."""

    def __init__(self, owned: Sequence[StreamState]) -> None:
        """Start from the controller's state: `owned` are the streams that are open at the log's owner."""
        self._streams = {state.stream_id: state for state in owned}
        self._end_offsets = {state.stream_id: state.end_offset for state in owned}

    def judge(self, record: StreamRecord) -> Verdict:
        """Classify the next record.

        Raises:
            WalCorruptError: the record extends beyond its stream's end, but does not start there or has
                another epoch than the stream.
        """
        state = self._streams.get(record.stream_id)
        if state is None:
            return Verdict.NOT_OWNED
        if record.epoch < state.epoch:
            # When the stream was closed at that epoch, everything acknowledged had been uploaded,
            # or an operator had accepted its loss. A later record comes from an unconfirmed put
            # that was stored late.
            return Verdict.OLDER_EPOCH
        end_offset = self._end_offsets[record.stream_id]
        if record.end_offset <= end_offset:
            return Verdict.COMMITTED
        if record.base_offset != end_offset:
            raise WalCorruptError(
                f"stream {record.stream_id}: offsets [{end_offset}, {record.base_offset}) are neither in the"
                " write-ahead log nor"
                f" uploaded; the next record of the log is [{record.base_offset}, {record.end_offset})."
                f" {_REMEDY}"
            )
        if record.epoch != state.epoch:
            raise WalCorruptError(
                f"stream {record.stream_id}: the record [{record.base_offset}, {record.end_offset}) of the"
                " write-ahead log was"
                f" appended at epoch {record.epoch}, but the stream is open at epoch {state.epoch}. {_REMEDY}"
            )
        assert record.end_offset > end_offset, "the end offset does not rise"
        self._end_offsets[record.stream_id] = record.end_offset
        return Verdict.UPLOAD

    def closed_states(self) -> list[StreamState]:
        """All owned streams, sorted by id, with the ends that they have after the commit of
        everything classified.
        """
        return [
            StreamState(stream_id, state.epoch, state.start_offset, self._end_offsets[stream_id])
            for stream_id, state in sorted(self._streams.items())
        ]


_REMEDY: Final = (
    "Nothing was changed. Start the node with the write-ahead log that it had when it stopped; if that is"
    " lost, acknowledged records of the stream are lost"
)


RECORDS_PER_TURN: Final = 250
"""Records of the log classified in one turn of the event loop."""


class UploadChunk:
    """Records to upload together, in log order. Its size bounds the memory of a recovery."""

    def __init__(self, uploader: ObjectUploader, settings: StorageSettings) -> None:
        self._uploader = uploader
        self._settings = settings
        self._records: dict[StreamId, list[StreamRecord]] = {}
        # summed here, so that `upload` need not iterate over all records
        self._sizes_bytes: dict[StreamId, int] = {}
        self._charged_bytes = 0
        self._gathered_bytes = 0
        self.uploaded_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the chunk is full."""
        return self._charged_bytes >= self._settings.recovery_chunk_bytes_max

    def add(self, record: StreamRecord) -> None:
        """Add the next record of the log."""
        # Copied: a view would keep the whole segment or slot in memory although few of its records
        # may be needed.
        record.payload = bytes(record.payload)
        stream_id, size_bytes = record.stream_id, record.size_bytes
        self._records.setdefault(stream_id, []).append(record)
        self._sizes_bytes[stream_id] = self._sizes_bytes.get(stream_id, 0) + size_bytes
        self._gathered_bytes += size_bytes
        self._charged_bytes += size_bytes + RECORD_OVERHEAD_BYTES

    async def upload(self, *, trim_sequence: int = 0) -> None:
        """Upload and commit the collected records. Send the controller the log's trim point if given.

        Raises:
            CommitRefusedError: the controller refused.
            WalNotHeldError: see `ObjectManager.commit_upload`.
        """
        assert trim_sequence >= 0
        assert self._records.keys() == self._sizes_bytes.keys()
        gathered, self._records, self._charged_bytes = self._records, {}, 0
        sizes_bytes, self._sizes_bytes = self._sizes_bytes, {}
        # Deleted streams are not owned. The controller ignores data of streams that are deleted in the
        # meantime.
        pieces = [_piece(gathered[stream_id], sizes_bytes[stream_id]) for stream_id in sorted(gathered)]
        if not pieces:
            return
        plan = plan_upload(
            pieces,
            split_size_bytes=self._settings.split_size_bytes,
            commit_ranges_max=self._settings.commit_ranges_max,
            set_object_streams_max=self._settings.set_object_streams_max,
            small_rest_bytes_max=self._settings.small_rest_bytes_max,
            may_carry=False,
        )
        await self._uploader.upload(plan, trim_sequence=(lambda: trim_sequence) if trim_sequence else None)
        self.uploaded_bytes, self._gathered_bytes = self.uploaded_bytes + self._gathered_bytes, 0


class Recovery:
    """One recovery of one log."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        wal: WriteAheadLog,
        streams: StreamManager,
        uploader: ObjectUploader,
        settings: StorageSettings,
    ) -> None:
        self._clock: Clock = runtime.clock
        self._wal = wal
        self._streams = streams
        self._chunk = UploadChunk(uploader, settings)
        self._counts = dict.fromkeys(Verdict, 0)

    async def run(self) -> RecoveryReport:
        """Upload, close, trim.

        Raises:
            WalCorruptError: the log is damaged, or acknowledged data is missing; nothing was closed
                or trimmed.
            CommitRefusedError: the controller refused; this process no longer owns the streams.
        """
        started_ns = self._clock.monotonic_ns()
        owned = self._streams.owned_streams()
        if self._wal.created and owned:
            raise WalCorruptError(
                f"this node owns {len(owned)} open streams (the first is {owned[0].stream_id}),"
                f" but its write-ahead log is new. {_REMEDY}"
            )
        judge = RecoveryFilter(owned)
        read = 0
        async for _, record in self._wal.recover():
            read += 1
            if read % RECORDS_PER_TURN == 0:
                await turn()
            verdict = judge.judge(record)
            self._counts[verdict] += 1
            if verdict is Verdict.UPLOAD:
                self._chunk.add(record)
                if self._chunk.is_full:
                    await self._chunk.upload()
        await self._chunk.upload()
        states = judge.closed_states()
        await close_recovered(self._streams, states)
        self._wal.trim(self._wal.next_sequence)
        return RecoveryReport(
            records=self._counts[Verdict.UPLOAD],
            bytes=self._chunk.uploaded_bytes,
            streams=len(states),
            skipped_committed=self._counts[Verdict.COMMITTED],
            skipped_not_owned=self._counts[Verdict.NOT_OWNED],
            skipped_older_epoch=self._counts[Verdict.OLDER_EPOCH],
            duration_ms=(self._clock.monotonic_ns() - started_ns) // 1_000_000,
        )


async def close_recovered(
    streams: StreamManager, states: Sequence[StreamState], *, recovered: WalName | None = None
) -> None:
    """Close streams at the ends that a recovery found; skip deleted ones.

    Raises:
        StreamFencedError: a stream is at another epoch or end.
        WalNotHeldError: another process recovers the log.
    """

    async def close(some: Sequence[StreamState]) -> None:
        if recovered is None:
            await streams.close_streams(some)
        else:
            await streams.close_streams(some, recovered=recovered)

    for start in range(0, len(states), STREAMS_PER_CALL_MAX):
        chunk = states[start : start + STREAMS_PER_CALL_MAX]
        try:
            await close(chunk)
        except StreamNotFoundError:  # the controller closes all streams of a call or none
            for state in chunk:
                with suppress(StreamNotFoundError):
                    await close([state])


def _piece(records: list[StreamRecord], size_bytes: int) -> UploadPiece:
    first, last = records[0], records[-1]
    assert first.base_offset < last.end_offset
    assert size_bytes > 0
    return UploadPiece(
        first.stream_id, first.epoch, first.base_offset, last.end_offset, size_bytes, (records,)
    )
