"""Log cache: holds records from their append to their eviction, in blocks for uploads and in runs
for readers.

A *block* is uploaded as a unit: the active block fills, sealed blocks wait for their commit, free
blocks serve readers until their memory is needed. A *chain* contains the cached runs of one stream
in offset order, one run per block. Blocks become free in the order in which they were sealed and
are evicted in that order, a few records at a time, so a chain loses records only at its front.

This module neither waits nor does I/O. `sealing` decides when to seal; `upload_plan` assigns sealed
data to objects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Final

from ponor_runtime.identity import StreamEpoch, StreamId

from s3stream.records import RECORD_HEADER_BYTES, StreamRecord
from s3stream.settings import RECORD_OVERHEAD_BYTES
from s3stream.upload_plan import UploadPiece

_RECORD_COST_BYTES = RECORD_HEADER_BYTES + RECORD_OVERHEAD_BYTES
_EVICTED_BYTES_MAX = 1024 * 1024
"""Most bytes evicted at once beyond those requested. Freeing a whole block of small records at once
would take tenths of a second."""

FETCH_RECORDS_MAX: Final = 4_096
"""Records of one fetch. A fetch of many tiny records would otherwise block the event loop while it
collects them."""


class StreamRun:
    """Contiguous records of one stream in one block. A run in a chain is never empty."""

    __slots__ = ("base_offsets", "chain", "first_sequence", "oldest_ns", "records", "size_bytes")

    def __init__(self, chain: StreamChain, first_sequence: int, oldest_ns: int) -> None:
        self.chain = chain
        self.first_sequence = first_sequence
        self.oldest_ns = oldest_ns
        self.records: list[StreamRecord] = []
        self.base_offsets: list[int] = []
        self.size_bytes = 0

    @property
    def end_offset(self) -> int:
        """One past the last offset."""
        return self.records[-1].end_offset

    @property
    def charged_bytes(self) -> int:
        """Charged bytes of the run."""
        return self.size_bytes + len(self.records) * RECORD_OVERHEAD_BYTES

    def drop_oldest(self, charged_bytes: int) -> int:
        """Drop records from the front until this many bytes are free or no record is left. Drop more if
        that is cheaper.

        Returns:
            The charged bytes that were released.
        """
        assert self.records, "a run in a chain is empty"
        assert charged_bytes > 0
        records = self.records
        # Dropping from the front moves all later elements. Dropping at least 1/256 at a time bounds
        # the total moves; dropping at most a MiB bounds the time.
        count_min = len(records) >> 8
        freed_bytes = count = 0
        for record in records:
            count += 1
            freed_bytes += len(record.payload) + _RECORD_COST_BYTES
            if freed_bytes >= charged_bytes and (count >= count_min or freed_bytes >= _EVICTED_BYTES_MAX):
                break
        del records[:count]
        del self.base_offsets[:count]
        self.size_bytes -= freed_bytes - count * RECORD_OVERHEAD_BYTES
        return freed_bytes


class StreamChain:
    """The cached records of one stream, from `first_offset` to the newest."""

    __slots__ = ("active", "runs", "stream_id")

    def __init__(self, stream_id: StreamId) -> None:
        self.stream_id = stream_id
        self.runs: list[StreamRun] = []
        self.active: StreamRun | None = None

    @property
    def first_offset(self) -> int | None:
        """The first cached offset; None if the chain is empty."""
        return self.runs[0].base_offsets[0] if self.runs else None

    def fetch(self, start_offset: int, max_bytes: int) -> list[StreamRecord] | None:
        """Return records from the one that contains `start_offset` on, without copying.

        Returns:
            At least one record regardless of its size, then as many as fit into `max_bytes` of
                payloads together, at most `FETCH_RECORDS_MAX`. [] when `start_offset` is after the
                last record; None when the record is not cached.
        """
        assert start_offset >= 0
        runs = self.runs
        at = len(runs) - 1
        while at >= 0 and runs[at].base_offsets[0] > start_offset:
            at -= 1
        if at < 0:
            return None
        run = runs[at]
        index = bisect_right(run.base_offsets, start_offset) - 1
        if run.records[index].end_offset <= start_offset:
            return []
        found: list[StreamRecord] = []
        room_bytes = max_bytes
        while True:
            records = run.records
            for number in range(index, min(len(records), index + FETCH_RECORDS_MAX - len(found))):
                record = records[number]
                room_bytes -= len(record.payload)
                if room_bytes < 0 and found:
                    return found
                found.append(record)
            if len(found) == FETCH_RECORDS_MAX:
                return found
            at += 1
            if at == len(runs):
                return found
            run, index = runs[at], 0


class LogBlock:
    """The unit of an upload."""

    __slots__ = ("charged_bytes", "first_sequence", "oldest_ns", "runs", "size_bytes")

    def __init__(self) -> None:
        self.runs: dict[StreamId, StreamRun] = {}
        self.size_bytes = 0
        self.charged_bytes = 0
        self.first_sequence = -1
        self.oldest_ns = 0

    def take(self, run: StreamRun) -> None:
        """Add a complete run."""
        assert run.chain.stream_id not in self.runs
        if self.runs:
            self.first_sequence = min(self.first_sequence, run.first_sequence)
            self.oldest_ns = min(self.oldest_ns, run.oldest_ns)
        else:
            self.first_sequence = run.first_sequence
            self.oldest_ns = run.oldest_ns
        self.runs[run.chain.stream_id] = run
        self.size_bytes += run.size_bytes
        self.charged_bytes += run.charged_bytes

    def give(self, stream_id: StreamId) -> StreamRun | None:
        """Remove and return a stream's run, if there is one."""
        run = self.runs.pop(stream_id, None)
        if run is not None:
            self.size_bytes -= run.size_bytes
            self.charged_bytes -= run.charged_bytes
            assert self.size_bytes >= 0
            assert self.charged_bytes >= 0
        return run


class SealedBlocks:
    """Blocks that are uploaded together, oldest first: carried data, if any, and the sealed block."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: tuple[LogBlock, ...]) -> None:
        self.blocks = blocks

    @property
    def first_sequence(self) -> int | None:
        """The oldest WAL entry with data in these blocks; None if there is none."""
        return min((block.first_sequence for block in self.blocks if block.runs), default=None)

    @property
    def charged_bytes(self) -> int:
        """Charged bytes of the blocks."""
        return sum(block.charged_bytes for block in self.blocks)

    def oldest_ns_of(self, stream_id: StreamId) -> int:
        """When the oldest record of a stream in these blocks became durable."""
        return min(block.runs[stream_id].oldest_ns for block in self.blocks if stream_id in block.runs)

    def pieces(self) -> list[UploadPiece]:
        """Return one piece per stream, sorted by stream id."""
        runs_of: dict[StreamId, list[StreamRun]] = {}
        for block in self.blocks:
            for stream_id, run in block.runs.items():
                runs_of.setdefault(stream_id, []).append(run)
        return [_piece(stream_id, runs_of[stream_id]) for stream_id in sorted(runs_of)]


class LogCache:
    """The cached records of all streams of a node, within a budget.

    `charged_bytes` counts everything: pending appends (`reserve`), data that waits for upload, and
    free data.
    """

    def __init__(self, *, bytes_max: int) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._free: deque[LogBlock] = deque()
        self._evicting: list[StreamRun] = []
        """The remaining records of the oldest free block; the next one to evict is last."""
        self._free_bytes = 0
        self.charged_bytes = 0
        self.active = LogBlock()
        self.carried: LogBlock | None = None
        self.now_ns = 0
        """When the records that are added now became durable; set once per group commit."""

    @property
    def bytes_max(self) -> int:
        """The budget."""
        return self._bytes_max

    @property
    def pinned_bytes(self) -> int:
        """Charged bytes that cannot be evicted."""
        return self.charged_bytes - self._free_bytes

    def reserve(self, charge_bytes: int, *, within_bytes: int) -> bool:
        """Charge a record before it is durable, and evict free blocks for it. Return False if the
        total would exceed `within_bytes`.
        """
        assert charge_bytes > 0
        assert within_bytes <= self._bytes_max
        total = self.charged_bytes + charge_bytes
        if total > within_bytes:
            total = self.evict_to(within_bytes - charge_bytes) + charge_bytes
            if total > within_bytes:
                return False
        self.charged_bytes = total
        return True

    def charge(self, charge_bytes: int) -> None:
        """Charge a record that must be accepted even above the budget."""
        assert charge_bytes > 0
        self.evict_to(self._bytes_max - charge_bytes)
        self.charged_bytes += charge_bytes

    def put(self, chain: StreamChain, record: StreamRecord, size_bytes: int, sequence: int) -> None:
        """Make a durable record, which was already charged, readable and add it to the active block."""
        run = chain.active
        block = self.active
        if run is None:
            run = StreamRun(chain, sequence, self.now_ns)
            if not block.runs:
                block.first_sequence = sequence
                block.oldest_ns = self.now_ns
            assert not chain.runs or chain.runs[-1].end_offset == record.base_offset, (
                "a record does not continue the chain"
            )
            block.runs[chain.stream_id] = run
            chain.runs.append(run)
            chain.active = run
        run.records.append(record)
        run.base_offsets.append(record.base_offset)
        run.size_bytes += size_bytes
        block.size_bytes += size_bytes
        block.charged_bytes += size_bytes + RECORD_OVERHEAD_BYTES

    def seal(self) -> SealedBlocks:
        """Seal the active block and the data carried to it, and begin a new block."""
        blocks = (self.active,) if self.carried is None else (self.carried, self.active)
        for run in self.active.runs.values():
            run.chain.active = None
        assert all(not block.runs or block.first_sequence >= 0 for block in blocks)
        self.active = LogBlock()
        self.carried = None
        return SealedBlocks(blocks)

    def carry(self, sealed: SealedBlocks, stream_ids: Collection[StreamId]) -> None:
        """Move the runs of these streams out of sealed blocks into the carried block. It is sealed together
        with the active block.

        Payloads are copied. Otherwise a few carried bytes would keep the network buffers of whole
        requests in memory.
        """
        assert self.carried is None
        assert not self.active.runs, "carried records must be set before new records arrive"
        if not stream_ids:
            return
        carried = LogBlock()
        for stream_id in stream_ids:
            runs = [run for block in sealed.blocks if (run := block.give(stream_id)) is not None]
            merged = _merge(runs)
            chain_runs = merged.chain.runs
            assert chain_runs[-1] is runs[-1]
            del chain_runs[-len(runs) :]
            chain_runs.append(merged)
            carried.take(merged)
        self.carried = carried

    def free(self, sealed: SealedBlocks) -> None:
        """Make committed or dropped blocks evictable. Their records stay readable."""
        for block in sealed.blocks:
            if block.runs:
                self._free.append(block)
                self._free_bytes += block.charged_bytes

    def evict_to(self, bytes_max: int) -> int:
        """Evict the oldest free records until at most this much is charged, or none is left. Return
        the charged bytes.
        """
        while self.charged_bytes > bytes_max:
            if not self._evicting:
                if not self._free:
                    break
                self._evicting.extend(reversed(self._free.popleft().runs.values()))
            run = self._evicting[-1]
            freed_bytes = run.drop_oldest(self.charged_bytes - bytes_max)
            assert 0 < freed_bytes <= self._free_bytes <= self.charged_bytes
            self._free_bytes -= freed_bytes
            self.charged_bytes -= freed_bytes
            if not run.records:
                self._evicting.pop()
                oldest = run.chain.runs.pop(0)
                assert oldest is run, "an evicted run is not the oldest run of its chain"
        return self.charged_bytes


def _piece(stream_id: StreamId, runs: list[StreamRun]) -> UploadPiece:
    if len(runs) == 1:  # usually one block; carried data adds a second one
        (run,) = runs
        epoch = StreamEpoch(run.records[0].epoch)
        return UploadPiece(
            stream_id, epoch, run.base_offsets[0], run.end_offset, run.size_bytes, (run.records,)
        )
    assert all(a.end_offset == b.base_offsets[0] for a, b in pairwise(runs)), "no holes"
    return UploadPiece(
        stream_id,
        StreamEpoch(runs[0].records[0].epoch),
        runs[0].base_offsets[0],
        runs[-1].end_offset,
        sum(run.size_bytes for run in runs),
        tuple(run.records for run in runs),
    )


def _records(runs: list[StreamRun]) -> Iterator[StreamRecord]:
    for run in runs:
        yield from run.records


def _merge(runs: list[StreamRun]) -> StreamRun:
    merged = StreamRun(runs[0].chain, runs[0].first_sequence, runs[0].oldest_ns)
    merged.size_bytes = sum(run.size_bytes for run in runs)
    merged.records = [
        StreamRecord(
            r.stream_id, r.epoch, r.base_offset, r.count, r.max_timestamp, bytes(r.payload), r.min_timestamp
        )
        for r in _records(runs)
    ]
    merged.base_offsets = [record.base_offset for record in merged.records]
    return merged
