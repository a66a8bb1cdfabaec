"""Planted bug: the write-ahead log is trimmed as if records that were carried to the next upload were uploaded."""

from __future__ import annotations

import pytest
from s3stream.storage import Storage
from s3stream.upload import Upload


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def sequence_needed_after(self: Storage, upload: Upload | None) -> int:
        sequences = [
            self._pipeline.first_sequence_without(upload),
            self._cache.active.first_sequence if self._cache.active.runs else None,
        ]
        return min((sequence for sequence in sequences if sequence is not None), default=self._next_sequence)

    monkeypatch.setattr(Storage, "_sequence_needed_after", sequence_needed_after)
