"""Settings of the storage: names, defaults, bounds, and the quantities that follow from them.

Only numbers live here. A service flattens these fields into its own settings and parses them with `ponor_runtime.settings`, which reads
bounds, unit and documentation from the fields' metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ponor_runtime.disk import SECTOR_BYTES
from ponor_runtime.settings import setting

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

RECORD_OVERHEAD_BYTES: Final = 512
"""What a cached record is charged beyond its bytes: the Python objects around it measure 400 to 500 bytes. Without this charge small
records outgrow any budget (AutoMQ's PR 3512)."""

SLOT_RECORD_BYTES_MAX: Final = 24 * MIB
"""The largest record that the object WAL takes. A slot must be one single put: a multipart upload has no condition (`stores.s3`)."""

COMMIT_RANGES_MAX: Final = 2_000
"""Ranges that a controller takes in one commit. It checks and applies a commit in one turn of its event loop (docs/operations/capacity.md)."""

COMMIT_OBJECTS_MAX: Final = 250
"""Stream objects of one commit, of an upload or a compaction; controllers take as many (`commit_objects_max`)."""

PREPARED_IDS_MAX: Final = 500
"""Object ids that an upload asks for at once; controllers give twice as many (`prepared_count_max`)."""

_UPLOAD_SIZE_DEFAULT_BYTES_MAX: Final = 500 * MIB
_SEGMENTS_PER_WINDOW: Final = 16
_CACHE_PARTS_PER_UPLOAD: Final = 3
"""One part fills, one is being uploaded, one serves readers."""


def _setting(default: int, low: int, high: int, unit: str, doc: str) -> int:
    """A field with the metadata that the settings parser reads."""
    chosen: int = field(default=default, metadata={"min": low, "max": high, "unit": unit, "doc": doc})
    return chosen


@dataclass(frozen=True, slots=True)
class PacingBounds:
    """Bounds of the object WAL's puts.

    `slot_bytes_wanted` ends the wait between two puts, because data that fills a slot gains nothing by waiting;
    `slot_bytes_max` also ends the wait for the budget.
    """

    requests_per_s_max: float
    puts_in_flight_max: int
    bytes_in_flight_max: int
    slot_bytes_wanted: int
    slot_bytes_max: int
    window_ms: int = 0
    """If not 0, a slot is put this long after its first append, whatever the load."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """How much memory, disk and time the storage of one node may take."""

    log_cache_bytes_max: int = _setting(
        512 * MIB,
        8 * MIB,
        1024 * GIB,
        "bytes",
        "memory for records that were appended, until they are uploaded and after",
    )
    append_waiting_bytes_max: int = _setting(
        32 * MIB,
        1 * MIB,
        64 * GIB,
        "bytes",
        "part of the log cache in which appends wait when the rest of it is full",
    )
    block_cache_bytes_max: int = _setting(
        256 * MIB, 1 * MIB, 1024 * GIB, "bytes", "memory for blocks read from objects"
    )
    index_cache_bytes_max: int = _setting(
        32 * MIB, 64 * KIB, 64 * GIB, "bytes", "memory for indexes of objects, beside the blocks"
    )
    read_ahead_blocks_max: int = _setting(
        8,
        0,
        256,
        "blocks",
        "blocks of 512 KiB that are read ahead for a sequential reader; all readers together get half of the block cache",
    )
    upload_size_bytes_max: int = _setting(
        0,
        0,
        64 * GIB,
        "bytes",
        "un-uploaded bytes that start an upload; 0: a third of the log cache, at most 500 MiB",
    )
    upload_interval_ms: int = _setting(
        60_000, 100, 86_400_000, "ms", "longest time that a record waits for its upload"
    )
    split_size_bytes: int = _setting(
        8 * MIB, 64 * KIB, 1 * GIB, "bytes", "a stream's run of this size becomes a stream object"
    )
    object_block_bytes_max: int = _setting(
        512 * KIB, 4 * KIB, 16 * MIB, "bytes", "size of a data block within an object"
    )
    small_rest_bytes_max: int = _setting(
        1 * MIB,
        0,
        64 * MIB,
        "bytes",
        "largest rest of an upload that gets no object of its own beside stream objects",
    )
    cache_pressure_percent: int = _setting(
        80, 10, 95, "%", "share of the log cache that may wait for upload before one is forced"
    )
    block_streams_max: int = _setting(
        4_096, 16, 16_384, "streams", "streams in a log block that start an upload"
    )
    commit_ranges_max: int = _setting(
        1_000,
        16,
        COMMIT_RANGES_MAX,
        "ranges",
        "ranges of one upload commit; more make several commits, and so do more than 250 stream objects",
    )
    set_object_streams_max: int = _setting(
        1_000,
        16,
        1_000,
        "streams",
        "streams of one stream set object; an upload with more makes several, each with a commit of its own",
    )
    uploads_in_flight_max: int = _setting(
        3, 1, 64, "uploads", "log blocks that are uploaded at the same time"
    )
    puts_in_flight_max: int = _setting(8, 1, 256, "puts", "objects that are put at the same time")
    upload_retry_ms_max: int = _setting(
        10_000, 10, 600_000, "ms", "longest pause between two attempts at a failed put"
    )
    force_linger_ms: int = _setting(
        20, 0, 10_000, "ms", "time in which forced uploads (closing streams) gather into one"
    )
    prepared_ttl_ms: int = _setting(
        3_600_000, 1_000, 86_400_000, "ms", "life of a prepared object id; longer than any upload takes"
    )
    wal_bytes_max: int = _setting(
        2 * GIB, 16 * MIB, 1024 * GIB, "bytes", "un-trimmed bytes of the write-ahead log"
    )
    wal_queue_bytes_max: int = _setting(
        64 * MIB, 1 * MIB, 16 * GIB, "bytes", "bytes on their way to the write-ahead log's disk"
    )
    wal_slot_bytes_max: int = _setting(
        8 * MIB,
        64 * KIB,
        SLOT_RECORD_BYTES_MAX,
        "bytes",
        "object WAL: records that share one slot; a larger record has one of its own",
    )
    wal_slot_bytes_wanted: int = _setting(
        1 * MIB,
        4 * KIB,
        SLOT_RECORD_BYTES_MAX,
        "bytes",
        "object WAL: a slot of this size is put without waiting for more, as far as wal_requests_per_s_max allows",
    )
    wal_requests_per_s_max: float = setting(
        50.0,
        minimum=0.2,
        maximum=10_000.0,
        unit="1/s",
        doc="object WAL: puts per second that are never exceeded for long, unless slots are full. The trade: every put costs the same (at $5 per"
        " million, 50/s for a month are $650, 4/s are $52, nothing is put while nothing is written), and an append waits half of the time between two puts"
        " on average, plus the put itself. Up to half of a second's budget is spent without any wait",
    )
    wal_window_ms: int = _setting(
        0,
        0,
        10_000,
        "ms",
        "object WAL: 0: adaptive, within wal_requests_per_s_max; else a slot is put so long after its first append or when it is full, whatever the"
        " load, as other object logs do it",
    )
    wal_puts_in_flight_max: int = _setting(
        24, 1, 1_024, "puts", "object WAL: slots that are put at the same time"
    )
    wal_hedge_ms: int = _setting(
        500,
        10,
        600_000,
        "ms",
        "object WAL: a put without an answer for so long, and for four times what puts take, is sent once more beside it, however much of the budget is spent; one in"
        " twenty at most",
    )
    wal_hedge_share: float = setting(
        0.1,
        minimum=0.0,
        maximum=1.0,
        unit="puts/put",
        doc="object WAL: puts that may be sent once more beside themselves as soon as they take 2.25 times what puts take in the middle, and 40 ms, of all puts; paid"
        " from the half of wal_requests_per_s_max that nobody waits for. 0: none",
    )
    wal_verify: str = setting(
        "auto",
        choices=("auto", "always"),
        doc="object WAL: 'auto' relies on the store refusing a put of a taken key, if the start-up probe saw that it does; otherwise, and with"
        " 'always', the controller is asked whether this process is still its node between a put's answer and the acknowledgement",
    )
    wal_recovery_bytes_max: int = _setting(
        32 * MIB,
        1 * MIB,
        64 * GIB,
        "bytes",
        "object WAL: un-trimmed bytes that force an upload; what a recovery has to read and upload, and so most of the time that a failover takes",
    )
    wal_recovery_slots_max: int = _setting(
        512,
        8,
        65_536,
        "slots",
        "object WAL: un-trimmed slots that force an upload; each costs a recovery a read",
    )
    store_put_usd_per_million: float = setting(
        5.0,
        minimum=0.0,
        maximum=1_000.0,
        unit="USD",
        doc="list price of a million PUT, POST and LIST requests, for the cost metrics",
    )
    store_get_usd_per_million: float = setting(
        0.4,
        minimum=0.0,
        maximum=1_000.0,
        unit="USD",
        doc="list price of a million GET and HEAD requests, for the cost metrics",
    )
    recovery_reads_in_flight_max: int = _setting(
        64, 1, 1_024, "reads", "slots of an object WAL that a recovery reads at the same time"
    )
    recovery_chunk_bytes_max: int = _setting(
        128 * MIB, 1 * MIB, 64 * GIB, "bytes", "bytes that recovery uploads at once"
    )
    fetch_timeout_ms: int = _setting(
        30_000, 10, 600_000, "ms", "longest read from objects, unless the caller sets a deadline"
    )

    @property
    def direct_bytes_max(self) -> int:
        """Charged bytes up to which an append goes to the WAL at once; above it waits."""
        return self.log_cache_bytes_max - min(self.append_waiting_bytes_max, self.log_cache_bytes_max // 8)

    @property
    def append_bytes_max(self) -> int:
        """The largest record (header included) that can ever be taken: by the log cache, and by one segment of the log."""
        return min(self.direct_bytes_max - RECORD_OVERHEAD_BYTES, self.wal_segment_bytes * 7 // 8)

    @property
    def wal_segment_bytes(self) -> int:
        """Size of a segment of the file WAL: small against the window, because it is trimmed by whole segments."""
        return min(self.wal_bytes_max // _SEGMENTS_PER_WINDOW, 64 * MIB) // SECTOR_BYTES * SECTOR_BYTES

    @property
    def wal_spares_max(self) -> int:
        """Trimmed segments that are kept for reuse: what two uploads free at once, for making a new one costs more than writing it."""
        return -(-2 * self.upload_size_bytes // self.wal_segment_bytes) + 1

    @property
    def wal_entry_bytes_max(self) -> int:
        """Bytes of records that share one entry of the log; a larger record has one of its own.

        With its frame it stays within the 2 MiB that a disk writes and syncs by one call.
        """
        return min(self.wal_segment_bytes // 4, 2 * MIB - 64 * KIB)

    @property
    def wal_pacing(self) -> PacingBounds:
        """When the object WAL puts."""
        return PacingBounds(
            requests_per_s_max=self.wal_requests_per_s_max,
            puts_in_flight_max=self.wal_puts_in_flight_max,
            bytes_in_flight_max=self.wal_queue_bytes_max,
            slot_bytes_wanted=min(self.wal_slot_bytes_wanted, self.wal_slot_bytes_max),
            slot_bytes_max=self.wal_slot_bytes_max,
            window_ms=self.wal_window_ms,
        )

    @property
    def upload_size_bytes(self) -> int:
        """What the size trigger compares with.

        Never above a third of the log cache, so that blocks are sealed by size, not by pressure, whatever was asked for.
        """
        third = self.log_cache_bytes_max // _CACHE_PARTS_PER_UPLOAD
        return min(third, self.upload_size_bytes_max or _UPLOAD_SIZE_DEFAULT_BYTES_MAX)

    @property
    def pressure_bytes(self) -> int:
        """Charged bytes waiting for upload from which on an upload is forced."""
        return self.log_cache_bytes_max * self.cache_pressure_percent // 100

    @property
    def wal_pressure_bytes(self) -> int:
        """Retained WAL bytes from which on an upload is forced."""
        return self.wal_bytes_max * 3 // 4

    @property
    def wal_carry_bytes_max(self) -> int:
        """Retained WAL bytes above which a small rest is not carried."""
        return self.wal_bytes_max // 4
