"""Planted bug: the streams of a broker that died are closed where the controller knows their end, and what its log holds beyond that is forgotten."""

from __future__ import annotations

import pytest
from s3stream.records import StreamRecord
from s3stream.recovery import RecoveryFilter, Verdict


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def judge(self: RecoveryFilter, record: StreamRecord) -> Verdict:
        return Verdict.COMMITTED

    monkeypatch.setattr(RecoveryFilter, "judge", judge)
