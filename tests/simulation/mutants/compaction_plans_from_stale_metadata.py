"""Planted bug: a worker plans with the streams that it heard of before, so that those which came since are taken for deleted ones, and the controller does not look whether the plan is stale."""

from __future__ import annotations

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_compactor.leased_task import LeasedTask
from ponor_controller.domains.compaction import operations as compaction


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    granted = LeasedTask.granted
    heard: set[int] = set()

    def granted_late(answer: wire.CompactionGranted) -> LeasedTask:
        stale = wire.CompactionGranted()
        stale.CopyFrom(answer)
        del stale.streams[:]
        stale.streams.extend(each for each in answer.streams if each.stream_id in heard or not heard)
        heard.update(each.stream_id for each in answer.streams)
        return granted(stale)

    monkeypatch.setattr(LeasedTask, "granted", staticmethod(granted_late))
    monkeypatch.setattr(compaction, "find_difference", lambda *_, **__: None)
