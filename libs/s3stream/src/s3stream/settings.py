"""Settings of the storage, and the sizes derived from them.

A service flattens these fields into its own settings and parses them with `ponor_runtime.settings`,
which reads bounds, unit and documentation from the fields' metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ponor_runtime.disk import SECTOR_BYTES
from ponor_runtime.settings import setting

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

RECORD_OVERHEAD_BYTES: Final = 512
"""Charge for a cached record beyond its bytes: its Python objects take 400 to 500 bytes. Without
this charge, small records exceed any budget (AutoMQ's PR 3512)."""

SLOT_RECORD_BYTES_MAX: Final = 24 * MIB
"""The largest record of an object WAL. A slot must be a single put, because a multipart upload
cannot be create-only (`stores.s3`)."""

COMMIT_RANGES_MAX: Final = 2_000
"""Ranges in one commit. A controller validates and applies a commit in one turn of its event loop
(docs/operations/capacity.md)."""

COMMIT_OBJECTS_MAX: Final = 250
"""Stream objects in one commit of an upload or a compaction; the same as the controllers'
`commit_objects_max`."""

PREPARED_IDS_MAX: Final = 500
"""Object ids that an upload requests at once; controllers allow twice as many (`prepared_count_max`)."""

_UPLOAD_SIZE_DEFAULT_BYTES_MAX: Final = 500 * MIB
_SEGMENTS_PER_WINDOW: Final = 16
_CACHE_PARTS_PER_UPLOAD: Final = 3
"""One part fills, one is being uploaded, one serves readers."""


@dataclass(frozen=True, slots=True)
class PacingBounds:
    """Bounds of the object WAL's puts.

    A slot of at least `slot_bytes_wanted` bytes does not wait for the gap between two puts, because it would
    not gain anything. A slot of `slot_bytes_max` bytes does not wait for the request budget either.
    """

    requests_per_s_max: float
    puts_in_flight_max: int
    bytes_in_flight_max: int
    slot_bytes_wanted: int
    slot_bytes_max: int
    window_ms: int = 0
    """If not 0, a slot is put this long after its first append, regardless of the load."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Limits of memory, disk and time for the storage of one node."""

    log_cache_bytes_max: int = setting(
        512 * MIB,
        within=(8 * MIB, 1024 * GIB),
        doc="Memory for appended records, both before and after their upload.",
    )
    append_waiting_bytes_max: int = setting(
        32 * MIB,
        within=(1 * MIB, 64 * GIB),
        doc="Part of the log cache reserved for appends that wait because the rest is full.",
    )
    block_cache_bytes_max: int = setting(
        256 * MIB, within=(1 * MIB, 1024 * GIB), doc="Memory for data blocks read from objects."
    )
    index_cache_bytes_max: int = setting(
        32 * MIB,
        within=(64 * KIB, 64 * GIB),
        doc="Memory for indexes read from objects, in addition to the block cache.",
    )
    read_ahead_blocks_max: int = setting(
        8,
        within=(0, 256),
        unit="blocks",
        doc="Blocks (512 KiB) read ahead for one sequential reader; 0: none. All readers together "
        "use at most half of the block cache.",
    )
    upload_size_bytes_max: int = setting(
        0,
        within=(0, 64 * GIB),
        doc="Bytes appended since the last upload that start an upload. 0: a third of the log"
        " cache, at most 500 MiB.",
    )
    upload_interval_ms: int = setting(
        60_000,
        within=(100, 86_400_000),
        doc="Longest time between the append of a record and the start of its upload.",
    )
    split_size_bytes: int = setting(
        8 * MIB,
        within=(64 * KIB, 1 * GIB),
        doc="An upload writes a separate stream object for each stream with at least this much data.",
    )
    object_block_bytes_max: int = setting(
        512 * KIB, within=(4 * KIB, 16 * MIB), doc="Target size of a data block in an object."
    )
    small_rest_bytes_max: int = setting(
        1 * MIB,
        within=(0, 64 * MIB),
        doc="If an upload leaves at most this much data outside stream objects, the data waits "
        "for the next upload.",
    )
    cache_pressure_percent: int = setting(
        80,
        within=(10, 95),
        doc="Share of the log cache that may wait for upload. Above it, an upload starts immediately.",
    )
    block_streams_max: int = setting(
        4_096,
        within=(16, 16_384),
        unit="streams",
        doc="Number of streams in a log block that starts an upload.",
    )
    commit_ranges_max: int = setting(
        1_000,
        within=(16, COMMIT_RANGES_MAX),
        unit="ranges",
        doc="Ranges in one commit of an upload. A larger upload makes several commits.",
    )
    set_object_streams_max: int = setting(
        1_000,
        within=(16, 1_000),
        unit="streams",
        doc="Streams in one stream set object. An upload with more streams writes several objects "
        "and commits each separately.",
    )
    uploads_in_flight_max: int = setting(
        3, within=(1, 64), unit="uploads", doc="Log blocks that are uploaded at the same time."
    )
    puts_in_flight_max: int = setting(
        8, within=(1, 256), unit="puts", doc="Objects that are put at the same time."
    )
    upload_retry_ms_max: int = setting(
        10_000, within=(10, 600_000), doc="Longest pause before a failed put is retried."
    )
    force_linger_ms: int = setting(
        20,
        within=(0, 10_000),
        doc="How long a forced upload (for example, when streams close) waits for others to join it.",
    )
    prepared_ttl_ms: int = setting(
        3_600_000,
        within=(1_000, 86_400_000),
        doc="Time after which a prepared object id expires. It must exceed the longest upload.",
    )
    wal_bytes_max: int = setting(
        2 * GIB, within=(16 * MIB, 1024 * GIB), doc="Size of the write-ahead log above its trim point."
    )
    wal_queue_bytes_max: int = setting(
        64 * MIB, within=(1 * MIB, 16 * GIB), doc="Bytes queued or being written to the write-ahead log."
    )
    wal_slot_bytes_max: int = setting(
        8 * MIB,
        within=(64 * KIB, SLOT_RECORD_BYTES_MAX),
        doc="Object WAL: largest slot with several records. A larger record gets its own slot.",
    )
    wal_slot_bytes_wanted: int = setting(
        1 * MIB,
        within=(4 * KIB, SLOT_RECORD_BYTES_MAX),
        doc="Object WAL: a slot of this size is put without waiting for more records, if "
        "wal_requests_per_s_max allows it.",
    )
    wal_requests_per_s_max: float = setting(
        50.0,
        within=(0.2, 10_000.0),
        unit="1/s",
        doc="Object WAL: budget of puts per second. Short bursts and full slots may exceed it. A "
        "lower value costs less and delays acknowledgements: on average an append waits half "
        "of the interval between two puts, plus the put. At $5 per million puts, 50/s cost "
        "$650 a month and 4/s cost $52; an idle log costs nothing.",
    )
    wal_window_ms: int = setting(
        0,
        within=(0, 10_000),
        doc="Object WAL: fixed delay between the first append to a slot and its put; a full slot "
        "is put earlier. 0: adaptive, within wal_requests_per_s_max.",
    )
    wal_puts_in_flight_max: int = setting(
        24, within=(1, 1_024), unit="puts", doc="Object WAL: slots that are put at the same time."
    )
    wal_hedge_ms: int = setting(
        500,
        within=(10, 600_000),
        doc="Object WAL: a put is repeated when it has no answer after this time and after four "
        "times the usual latency. This may exceed the budget and applies to at most one put in twenty.",
    )
    wal_hedge_share: float = setting(
        0.1,
        within=(0.0, 1.0),
        unit="puts/put",
        doc="Object WAL: share of puts that may be hedged, that is, repeated when they take longer "
        "than 40 ms and 2.25 times the median. Hedged puts use only budget that would "
        "otherwise be unused. 0: no hedging.",
    )
    wal_verify: str = setting(
        "auto",
        choices=("auto", "always"),
        doc="Object WAL: 'auto' relies on the store to refuse a create-only put of an existing "
        "key, if the start-up probe confirmed that it does. Otherwise, and with 'always', the "
        "broker asks the controller before each acknowledgement whether it was replaced.",
    )
    wal_recovery_bytes_max: int = setting(
        32 * MIB,
        within=(1 * MIB, 64 * GIB),
        doc="Object WAL: bytes above the trim point that force an upload. A recovery must read"
        " and upload them, which takes most of a failover's time.",
    )
    wal_recovery_slots_max: int = setting(
        512,
        within=(8, 65_536),
        unit="slots",
        doc="Object WAL: slots above the trim point that force an upload. A recovery reads each with one"
        " GET.",
    )
    store_put_usd_per_million: float = setting(
        5.0,
        within=(0.0, 1_000.0),
        unit="USD",
        doc="List price of a million PUT, POST and LIST requests, for the cost metrics.",
    )
    store_get_usd_per_million: float = setting(
        0.4,
        within=(0.0, 1_000.0),
        unit="USD",
        doc="List price of a million GET and HEAD requests, for the cost metrics.",
    )
    recovery_reads_in_flight_max: int = setting(
        64,
        within=(1, 1_024),
        unit="reads",
        doc="Slots of an object WAL that a recovery reads at the same time.",
    )
    recovery_chunk_bytes_max: int = setting(
        128 * MIB, within=(1 * MIB, 64 * GIB), doc="Bytes that a recovery uploads at once."
    )
    fetch_timeout_ms: int = setting(
        30_000, within=(10, 600_000), doc="Longest read from objects, unless the caller sets a deadline."
    )

    @property
    def direct_bytes_max(self) -> int:
        """Charged bytes up to which an append goes to the WAL immediately; above this, it waits."""
        return self.log_cache_bytes_max - min(self.append_waiting_bytes_max, self.log_cache_bytes_max // 8)

    @property
    def append_bytes_max(self) -> int:
        """The largest record (including header) that the log cache and one segment of the log can hold."""
        return min(self.direct_bytes_max - RECORD_OVERHEAD_BYTES, self.wal_segment_bytes * 7 // 8)

    @property
    def wal_segment_bytes(self) -> int:
        """Size of a segment of the file WAL: a small part of the log, because trimming deletes
        whole segments.
        """
        return min(self.wal_bytes_max // _SEGMENTS_PER_WINDOW, 64 * MIB) // SECTOR_BYTES * SECTOR_BYTES

    @property
    def wal_spares_max(self) -> int:
        """Trimmed segments kept for reuse: as many as two uploads free together. Creating a segment
        costs more than writing it.
        """
        return -(-2 * self.upload_size_bytes // self.wal_segment_bytes) + 1

    @property
    def wal_entry_bytes_max(self) -> int:
        """Bytes of records that share one entry of the log; a larger record has its own entry.

        Including its frame, an entry stays within the 2 MiB that a disk writes and syncs in one call.
        """
        return min(self.wal_segment_bytes // 4, 2 * MIB - 64 * KIB)

    @property
    def wal_pacing(self) -> PacingBounds:
        """Limits of the object WAL's puts."""
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
        """Bytes of data that start an upload.

        Never above a third of the log cache regardless of the setting, so that blocks are sealed by
        size and not by pressure.
        """
        third = self.log_cache_bytes_max // _CACHE_PARTS_PER_UPLOAD
        return min(third, self.upload_size_bytes_max or _UPLOAD_SIZE_DEFAULT_BYTES_MAX)

    @property
    def pressure_bytes(self) -> int:
        """Charged bytes waiting for upload above which an upload is forced."""
        return self.log_cache_bytes_max * self.cache_pressure_percent // 100

    @property
    def wal_pressure_bytes(self) -> int:
        """Retained WAL bytes above which an upload is forced."""
        return self.wal_bytes_max * 3 // 4

    @property
    def wal_carry_bytes_max(self) -> int:
        """Retained WAL bytes above which a small rest is not carried."""
        return self.wal_bytes_max // 4
