"""Planted bug: the write-ahead log is trimmed as if records that were carried to the next upload were uploaded."""

from __future__ import annotations

import pytest
from s3stream.storage import Storage


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def trim_wal(self: Storage) -> None:
        sequences = [
            self._pipeline.first_sequence,
            self._cache.active.first_sequence if self._cache.active.runs else None,
        ]
        self._wal.trim(
            min((sequence for sequence in sequences if sequence is not None), default=self._next_sequence)
        )

    monkeypatch.setattr(Storage, "trim_wal", trim_wal)
