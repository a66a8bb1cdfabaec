"""Metrics of a journal."""

from __future__ import annotations

from ponor_runtime.telemetry import Telemetry


class JournalInstruments:
    """The counters of one journal, labelled with its role."""

    def __init__(self, telemetry: Telemetry, role: str) -> None:
        self._frames = telemetry.counter("ponor_journal_frames_total", journal=role)
        self._entries = telemetry.counter("ponor_journal_entries_total", journal=role)
        self._bytes = telemetry.counter("ponor_journal_bytes_total", journal=role)
        self._sync_us = telemetry.histogram("ponor_journal_sync_seconds", journal=role)

    def group_committed(self, entries: int, frame_bytes: int, nanoseconds: int) -> None:
        """Count a synced group."""
        self._frames.value += 1
        self._entries.value += entries
        self._bytes.value += frame_bytes
        self._sync_us.record(nanoseconds // 1000)
