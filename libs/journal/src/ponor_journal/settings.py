"""Settings of a journal and the constraints between them."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_runtime.disk import SECTOR_BYTES
from ponor_runtime.settings import SettingError

from ponor_journal.format import FRAME_HEADER_BYTES, LENGTH_BYTES, OPENING_FRAME_BYTES, PROOF_FRAME_BYTES

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Sizes, limits and delays of a journal.

    Attributes:
        segment_bytes: size of every segment file; a multiple of 512. Files of other sizes stay readable.
        queue_bytes_max: accepted entries that are not durable yet; `append` refuses more.
        group_bytes_max: entries written by one sync; a larger entry is written alone.
        entry_bytes_max: maximum size of an entry; 0: whatever fits into an empty segment.
        spares_max: recycled segments kept for reuse; others are deleted.
        proof_delay_ms: delay from the last group commit to the write of its proof of sync, which is not
            itself synced.

    Raises:
        SettingError: the values contradict each other.
    """

    segment_bytes: int = 64 * MIB
    queue_bytes_max: int = 64 * MIB
    group_bytes_max: int = 4 * MIB
    entry_bytes_max: int = 0
    spares_max: int = 2
    proof_delay_ms: int = 100

    def __post_init__(self) -> None:
        if self.segment_bytes % SECTOR_BYTES or self.segment_bytes < 4 * SECTOR_BYTES:
            raise SettingError(
                f"segment_bytes is {self.segment_bytes}; it must be a multiple of {SECTOR_BYTES} and at"
                f" least {4 * SECTOR_BYTES}"
            )
        if self.entry_bytes_max > self.entry_room_bytes:
            raise SettingError(
                f"entry_bytes_max is {self.entry_bytes_max}, but a segment of {self.segment_bytes} bytes has"
                f" room for {self.entry_room_bytes}; raise segment_bytes"
            )
        if (
            self.queue_bytes_max < 1
            or self.group_bytes_max < 1
            or self.spares_max < 1
            or self.proof_delay_ms < 0
        ):
            raise SettingError(
                "queue_bytes_max, group_bytes_max and spares_max must be at least 1, and"
                " proof_delay_ms at least 0"
            )

    @property
    def entry_room_bytes(self) -> int:
        """The largest entry that fits into an empty segment, alone in a frame between the opening frame and
        the reserve for a proof.
        """
        reserved = OPENING_FRAME_BYTES + PROOF_FRAME_BYTES
        return self.segment_bytes - reserved - FRAME_HEADER_BYTES - LENGTH_BYTES

    @property
    def entry_limit_bytes(self) -> int:
        """The effective limit: `entry_bytes_max`, or `entry_room_bytes` if that is 0."""
        return self.entry_bytes_max or self.entry_room_bytes
