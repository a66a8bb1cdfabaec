"""Bounds of client connections, in total and per address, and of log lines about refused ones."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_broker.listener.connection_limits import LINES_PER_PERIOD_MAX, ConnectionCounts, RefusalLog

ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


@given(st.lists(st.tuples(st.sampled_from(ADDRESSES), st.booleans()), max_size=80))
def test_connection_bounds_hold_and_free_room_is_used(moves: list[tuple[str, bool]]) -> None:
    counts = ConnectionCounts(connections_max=7, per_address_max=4)
    connected: list[str] = []
    for address, comes in moves:
        if not comes:
            if address in connected:
                connected.remove(address)
                counts.remove(address)
            continue
        refusal = counts.refusal(address)
        if len(connected) == 7:
            assert refusal == "connections_max"
        elif connected.count(address) == 4:
            assert refusal == "connections_per_address_max"
        else:
            assert refusal is None
            counts.add(address)
            connected.append(address)
        assert counts.total == len(connected)


def test_log_lines_about_refused_clients_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog()
    with caplog.at_level(logging.WARNING, "ponor.broker.listener"):
        for number in range(LINES_PER_PERIOD_MAX + 200):
            log.say(f"10.0.0.1:{number}", "malformed", "no frame")
        assert len(caplog.records) == LINES_PER_PERIOD_MAX
        log.begin_period()
        assert "200 more" in caplog.records[-1].getMessage()
        log.begin_period()
        log.say("10.0.0.1:1", "malformed", "no frame")
    assert len(caplog.records) == LINES_PER_PERIOD_MAX + 2
