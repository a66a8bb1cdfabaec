"""Planted bug: recovery takes a record of an older epoch of its stream for one that must be uploaded or be an error."""

from __future__ import annotations

import pytest
from s3stream.records import StreamRecord
from s3stream.recovery import RecoveryFilter, Verdict


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    judge = RecoveryFilter.judge

    def judge_as_newest(self: RecoveryFilter, record: StreamRecord) -> Verdict:
        state = self._streams.get(record.stream_id)
        if state is not None and record.epoch < state.epoch:
            record.epoch = state.epoch
        return judge(self, record)

    monkeypatch.setattr(RecoveryFilter, "judge", judge_as_newest)
