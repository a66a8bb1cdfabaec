"""Planted bug: a controller that became the leader after another one takes the streams that the other one saw opened for closed, so that a partition gets a second owner."""

from __future__ import annotations

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.domains.moves import rules
from ponor_controller.domains.streams import operations as streams
from ponor_controller.kernel.decisions import Situation
from ponor_controller.kernel.leadership import ControllerLeadership
from ponor_metadata.rows import StreamRow


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    begun, check_open, open_stream = ControllerLeadership._begun, streams._check_open, rules.open_stream
    terms = [0]

    def count(self: ControllerLeadership) -> None:
        terms[0] += 1
        begun(self)

    def check(row: StreamRow, wanted: wire.OpenStream, situation: Situation) -> None:
        check_open(row._replace(open=row.open and terms[0] < 2), wanted, situation)

    monkeypatch.setattr(ControllerLeadership, "_begun", count)
    monkeypatch.setattr(streams, "_check_open", check)
    monkeypatch.setattr(rules, "open_stream", lambda *of: open_stream(*of) if terms[0] < 2 else None)
