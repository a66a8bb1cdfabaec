"""What a distant store leaves of a producer's window, in virtual time: figures that depend on the rules alone and are the same on every machine."""

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
"""Second copies a second that a short run may have put by."""


class NearStore(DistantStore):
    """A server in the next room, with a tail of its own."""

    p50_s = 0.002
    p99_s = 0.008


class HalfWay(DistantStore):
    """What is applied is answered as much later."""

    there = 0.5


@pytest.mark.parametrize("reading_ms", [0, 1, 2])
def test_a_window_is_carried_however_long_its_requests_take_to_be_read(reading_ms: float) -> None:
    load = Load(16 * KIB, in_flight=WINDOW, reading_s=reading_ms / 1000)
    seen = run_load(load, seconds=SECONDS)
    assert seen.share_of_window(load) >= 0.82
    assert seen.puts_per_s <= 32, "they share a slot"
    assert seen.hedges <= SHARE + SAVED


def test_copies_count_against_the_budget() -> None:
    seen = run_load(Load(1_000, per_s=1_000), seconds=SECONDS)
    assert seen.requests_per_s <= BUDGET_PER_S * (1 + 1 / SECONDS) + SAVED


def test_copies_cut_the_tail_of_few_appends_and_cost_their_share() -> None:
    slow = Load(1_000, per_s=10, evenly=True)
    seen = run_load(slow, seconds=5 * SECONDS)
    alone = run_load(slow, seconds=5 * SECONDS, settings=StorageSettings(wal_hedge_share=0))
    assert seen.p99_ms < alone.p99_ms
    assert alone.requests_per_s == alone.puts_per_s
    assert seen.hedges <= SHARE + SAVED


def test_a_store_nearby_is_not_asked_twice() -> None:
    seen = run_load(Load(1_000, per_s=50), seconds=SECONDS, store=NearStore)
    assert seen.hedges == 0


def test_a_copy_may_find_the_key_taken_before_the_first_is_answered() -> None:
    seen = run_load(JAVA, seconds=2 * SECONDS, store=HalfWay)
    assert seen.gets > 0
    assert seen.share_of_window(JAVA) >= 0.82
