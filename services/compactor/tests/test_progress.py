"""Tests of a task's progress and remaining time."""

from __future__ import annotations

import logging

import pytest
from ponor_compactor.progress import Progress
from ponor_runtime.telemetry import Telemetry

from libs.s3stream.tests.store_rig import InstantClock


def test_remaining_time_follows_the_average_rate(caplog: pytest.LogCaptureFixture) -> None:
    clock, telemetry = InstantClock(), Telemetry()
    progress = Progress(clock, telemetry)
    progress.begin("compaction 7.1")
    with caplog.at_level(logging.INFO, logger="ponor.compactor"):
        clock.now_ns += 4_000_000_000
        progress.moved(20, 100)
        assert (progress.ratio, progress.eta_s) == (0.2, 16.0)
        assert not caplog.records, "at most one line every ten seconds"
        clock.now_ns += 8_000_000_000
        progress.moved(60, 100)
        assert caplog.messages == ["compaction 7.1: 60 of 100 bytes (60%), about 8 s left"]
    assert progress.end() == 12.0
    assert dict(telemetry.gauges("ponor_compactor_eta_seconds")) == {(): 0.0}


def test_task_without_bytes_is_complete() -> None:
    progress = Progress(InstantClock(), Telemetry())
    progress.begin("compaction 1.1")
    progress.moved(0, 0)
    assert (progress.ratio, progress.eta_s) == (1.0, 0.0)
