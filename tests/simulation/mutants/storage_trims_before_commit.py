"""Planted bug: the write-ahead log is trimmed up to what is being uploaded, not up to what is committed."""

from __future__ import annotations

import pytest
from s3stream.upload import UploadPipeline


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    submit = UploadPipeline.submit

    def submit_and_forget(self: UploadPipeline, upload: object) -> None:
        submit(self, upload)  # type: ignore[arg-type]
        self._on_committed.__self__.trim_wal()  # type: ignore[attr-defined]

    monkeypatch.setattr(UploadPipeline, "first_sequence_without", lambda *_: None)
    monkeypatch.setattr(UploadPipeline, "submit", submit_and_forget)
