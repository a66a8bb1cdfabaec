"""Planted bug: recovery drops what is behind the committed end instead of uploading it."""

from __future__ import annotations

import pytest
from s3stream.records import StreamRecord
from s3stream.recovery import RecoveryFilter, Verdict


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def judge(self: RecoveryFilter, record: StreamRecord) -> Verdict:
        if record.stream_id not in self._streams:
            return Verdict.NOT_OWNED
        if record.base_offset < self._end_offsets[record.stream_id]:
            return Verdict.COMMITTED
        return Verdict.NOT_OWNED

    monkeypatch.setattr(RecoveryFilter, "judge", judge)
