"""The tests of `tests.e2e.disasters` at full length: a minute without disk space, without a store,
with a slow store, and with a wall clock that jumps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.disasters import (
    the_disk_of_the_log_fills_up,
    the_store_becomes_slow,
    the_store_goes_down,
    the_wall_clock_jumps,
)
from tests.e2e.stores import STORES, StoreForTest, store_for_test

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreForTest]:
    with store_for_test("s3", tmp_path) as prepared:
        yield prepared


def test_a_minute_with_a_full_disk(store: StoreForTest, tmp_path: Path) -> None:
    the_disk_of_the_log_fills_up(store, tmp_path / "cluster", full_s=60)


@pytest.mark.parametrize("dies", [True, False], ids=["killed", "silent"])
def test_a_minute_without_the_store(store: StoreForTest, tmp_path: Path, dies: bool) -> None:
    the_store_goes_down(store, tmp_path / "cluster", down_s=60, dies=dies)


def test_a_minute_with_a_store_ten_times_slower(store: StoreForTest, tmp_path: Path) -> None:
    the_store_becomes_slow(store, tmp_path / "cluster", slow_s=60)


@pytest.mark.parametrize("kind", STORES)
def test_the_wall_clock_jumps_an_hour_forward_and_back(kind: str, tmp_path: Path) -> None:
    with store_for_test(kind, tmp_path) as store:
        the_wall_clock_jumps(store, tmp_path / "cluster", stay_s=10)
