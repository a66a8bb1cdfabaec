"""Short runs of the scenarios in `disasters`; `make acceptance` runs them at full length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.disasters import the_disk_of_the_log_fills_up, the_store_becomes_slow, the_store_goes_down
from tests.e2e.stores import StoreForTest, store_on
from tests.integration.seaweed_server import SeaweedServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as started:
        yield started


@pytest.fixture
def store(server: SeaweedServer, request: pytest.FixtureRequest) -> StoreForTest:
    return store_on(server, request.node.name)


def test_disk_of_the_log_fills_up(store: StoreForTest, tmp_path: Path) -> None:
    the_disk_of_the_log_fills_up(store, tmp_path / "cluster", full_s=3)


def test_store_goes_silent(store: StoreForTest, tmp_path: Path) -> None:
    the_store_goes_down(store, tmp_path / "cluster", down_s=3, dies=False)


def test_store_becomes_slow(store: StoreForTest, tmp_path: Path) -> None:
    the_store_becomes_slow(store, tmp_path / "cluster", slow_s=6)
