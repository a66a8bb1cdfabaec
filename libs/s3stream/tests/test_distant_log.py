"""Throughput and latency of a log on a distant store, in virtual time. The results depend only on
the algorithm and are equal on every machine.
"""

from __future__ import annotations

import pytest
from s3stream.settings import KIB, StorageSettings

from libs.s3stream.tests.distant_log import DistantStore, Load, run_load

SECONDS = 40.0
WINDOW = 5
JAVA = Load(16 * KIB, in_flight=WINDOW)
BUDGET_PER_S = StorageSettings().wal_requests_per_s_max
SHARE = StorageSettings().wal_hedge_share
SAVED = 4 / SECONDS
"""Hedged puts per second that a short run may save up."""


class NearStore(DistantStore):
    """A nearby server with a latency tail."""

    p50_s = 0.002
    p99_s = 0.008


class HalfWay(DistantStore):
    """A store that answers this much later than it applies a call."""

    there = 0.5


@pytest.mark.parametrize("reading_ms", [0, 1, 2])
def test_a_full_window_is_sustained_for_any_request_reading_time(reading_ms: float) -> None:
    load = Load(16 * KIB, in_flight=WINDOW, reading_s=reading_ms / 1000)
    seen = run_load(load, seconds=SECONDS)
    assert seen.share_of_window(load) >= 0.82
    assert seen.puts_per_s <= 32, "they share a slot"
    assert seen.hedges <= SHARE + SAVED


def test_hedged_puts_count_against_the_budget() -> None:
    seen = run_load(Load(1_000, per_s=1_000), seconds=SECONDS)
    assert seen.requests_per_s <= BUDGET_PER_S * (1 + 1 / SECONDS) + SAVED


def test_hedged_puts_cut_the_tail_of_sparse_appends_within_their_share() -> None:
    slow = Load(1_000, per_s=10, evenly=True)
    seen = run_load(slow, seconds=5 * SECONDS)
    alone = run_load(slow, seconds=5 * SECONDS, settings=StorageSettings(wal_hedge_share=0))
    assert seen.p99_ms < alone.p99_ms
    assert alone.requests_per_s == alone.puts_per_s
    assert seen.hedges <= SHARE + SAVED


def test_puts_to_a_nearby_store_are_not_hedged() -> None:
    seen = run_load(Load(1_000, per_s=50), seconds=SECONDS, store=NearStore)
    assert seen.hedges == 0


def test_a_hedged_put_may_find_the_key_taken_before_the_first_answer() -> None:
    seen = run_load(JAVA, seconds=2 * SECONDS, store=HalfWay)
    assert seen.gets > 0
    assert seen.share_of_window(JAVA) >= 0.82
