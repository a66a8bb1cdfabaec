"""Clusters of these tests have small logs."""

from collections.abc import Iterator

import pytest

from tests.e2e.load.cluster import SMALL_LOGS, LocalCluster


@pytest.fixture(autouse=True, scope="session")
def _small_logs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalCluster, "defaults", SMALL_LOGS)
        yield
